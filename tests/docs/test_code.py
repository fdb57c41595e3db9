"""The Python of every page runs, against a real server, and with a real worker where the page starts one.

A page's blocks are one program, run in a process of its own, in the page's order. A block with
`title="proj.py"` is a file in that folder. A page that makes no app of its own is about `app`, as the
quickstart makes it. `no-run` after "python" leaves a block out; a comment just before it says why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from tests.docs.pages import ROOT, page, pages
from tests.support.workers import Worker

URL = "redis://localhost:6379"
PRELUDE = f"""
from celery import Celery
from celery_rlock import LockedTask, RLock, current_lock
app = Celery("proj", broker="{URL}/0", backend="{URL}/0", set_as_current=True)
"""
WITH_PYTHON = [page for page in pages() if page.blocks("python") and not page.name.startswith("examples/")]


@pytest.fixture
def run(server, tmp_path):
    """Runs a page's program and returns what it printed."""

    def here(code):
        return code.replace(URL, server.url.removesuffix("/0"))

    def run(page, *more):
        blocks = [block for block in page.blocks("python") if "no-run" not in block.words.split()]
        for block in blocks:
            if block.title:
                (tmp_path / block.title).write_text(here(block.code))
        program = [block.code for block in blocks if not block.title]
        if not any("Celery(" in block.code for block in blocks):
            program.insert(0, PRELUDE)
        (tmp_path / "page_program.py").write_text(here("\n".join([*program, *more])))
        with workers(page, tmp_path):
            return _output(tmp_path)

    return run


@contextmanager
def workers(page, folder):
    """One for each `celery -A proj worker` of the page whose proj.py the page has too."""
    commands = "\n".join(block.code for block in page.blocks("sh"))
    apps = set(re.findall(r"celery -A (\w+) worker", commands))
    with ExitStack() as stack:
        for app in apps & {path.stem for path in folder.glob("*.py")}:
            stack.enter_context(Worker.start(app, concurrency=2, env={"PYTHONPATH": _path(folder)}))
        yield


def _output(folder):
    done = subprocess.run(
        [sys.executable, "page_program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": _path(folder)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _path(folder):
    return os.pathsep.join((str(folder), str(ROOT)))


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_its_python_runs(page, run):
    run(page)


def test_the_readme_publishes_and_charges(run, server):
    output = run(page("README.md"), "print(charge(7, amount=3)['charged'])")
    assert output.splitlines()[-1] == "3"
    assert server.client().llen("celery") == 3


def test_the_quickstart_prints_what_it_shows(run):
    shown = page("docs/quickstart.md").blocks("text")[0].code
    pattern = re.escape(shown.strip()).replace(r"…", r"\S+")
    assert re.search(rf"(?m)^{pattern}$", run(page("docs/quickstart.md")))


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_what_is_not_run_has_a_reason(page):
    for block in page.blocks("python"):
        if "no-run" in block.words.split():
            assert block.before.endswith("-->"), block.code
