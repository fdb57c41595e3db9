"""Examples, and broken copies of them that must fail: what cannot fail shows nothing."""

from __future__ import annotations

import shutil

import pytest

from tests.support.example import ROOT, Example

WITHIN = 100


@pytest.fixture(scope="module")
def start_example(tmp_path_factory):
    """Starts `python -m examples.<name>`; all of them are gone when the module's tests have ended."""
    started = []

    def start(name, *args, root=ROOT):
        started.append(Example(f"examples.{name}", tmp_path_factory.mktemp(name), *args, root=root))
        return started[-1]

    yield start
    for example in started:
        example.close()


@pytest.fixture(scope="module")
def broken_copy(tmp_path_factory):
    """A copy of the examples in which a piece of one file is replaced."""

    def copy(file, piece, replacement):
        root = tmp_path_factory.mktemp("broken")
        shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        path = root / "examples" / file
        assert piece in path.read_text()
        path.write_text(path.read_text().replace(piece, replacement))
        return root

    return copy


@pytest.fixture(scope="session")
def ended():
    """Waits for the end of an example; its processes and files must be gone by then."""

    def wait(example):
        example.process.wait(WITHIN)
        example.assert_nothing_is_left()
        return example

    return wait


@pytest.fixture(scope="module")
def example(examples, ended):
    """The example, over; a file's own `examples` starts it and its broken copy."""
    return ended(examples[0])


@pytest.fixture(scope="module")
def broken(examples, ended):
    return ended(examples[1])
