"""Runs the examples, and broken copies of them. A broken copy must fail, or the example proves nothing."""

from __future__ import annotations

import shutil

import pytest

from tests.support.example import ROOT, Example

WITHIN = 100


@pytest.fixture(scope="module")
def start_example(tmp_path_factory):
    """Starts `python -m examples.<name>`, and ends it after the tests of the module."""
    started = []

    def start(name, *args, root=ROOT):
        started.append(Example(f"examples.{name}", tmp_path_factory.mktemp(name), *args, root=root))
        return started[-1]

    yield start
    for example in started:
        example.close()


@pytest.fixture(scope="module")
def broken_copy(tmp_path_factory):
    """Copies the examples, with a piece of one file replaced."""

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
    """Waits for the end of an example, and checks that its processes and files are gone."""

    def wait(example):
        example.process.wait(WITHIN)
        example.assert_nothing_is_left()
        return example

    return wait


@pytest.fixture(scope="module")
def example(examples, ended):
    """The example, after its end. The `examples` fixture of a test file starts it and its broken copy."""
    return ended(examples[0])


@pytest.fixture(scope="module")
def broken(examples, ended):
    return ended(examples[1])
