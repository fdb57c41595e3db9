"""The Python of every page runs, with a real server, and with a real worker where the page starts one.

Each page has a folder of its own. A block with `title="tasks.py"` is a file in it. The other Python blocks
of a page are one program, in the order of the page. A page that makes no app gets one called `app`. Then
the `python file.py` commands of the page run, and pytest runs the files called `test_….py`. A block that
says `no-run` is left out; a comment above it says why.
"""

from __future__ import annotations

import re

import pytest

from tests.docs.folder import Folder
from tests.docs.pages import ROOT, page, pages

WITH_PYTHON = [page for page in pages() if page.blocks("python") and not page.name.startswith("examples/")]


@pytest.fixture
def folder(server, tmp_path):
    return lambda page: Folder(page, tmp_path, server.url)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_the_page_runs(page, folder):
    folder(page).run()


def test_the_readme_example_has_at_most_15_lines_and_its_calls_succeed(folder):
    readme = folder(page("README.md"))
    assert len((readme.path / "tasks.py").read_text().splitlines()) <= 15
    assert re.fullmatch(r"\{'charged': 25, 'token': \d+\}\n", readme.run())


def test_the_quickstart_prints_what_it_shows(folder):
    quickstart = page("docs/quickstart.md")
    assert folder(quickstart).run() == quickstart.blocks("text")[0].code


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_a_python_block_that_does_not_run_has_a_reason(page):
    for block in page.blocks("python"):
        if not block.runs:
            assert block.before.endswith("-->"), block.code


def test_the_test_for_pytest_celery_is_one_that_runs():
    shown = [block.code for block in page("docs/testing.md").blocks("python") if not block.runs]
    assert shown
    assert all(code in (ROOT / "tests/smoke/test_smoke.py").read_text() for code in shown)
