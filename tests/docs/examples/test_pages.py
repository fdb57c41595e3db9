"""The code that the examples' pages show is the code that runs."""

from __future__ import annotations

import re

import pytest

from tests.support.example import ROOT

EXAMPLES = ("periodic", "limits", "search_index", "inventory", "leaderboard", "django")
PAGES = [*((name, f"examples/{name}/README.md") for name in EXAMPLES), ("django", "docs/how-to/django.md")]
CODE = re.compile(r"^```(?:python no-run|lua)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("name", "page"), PAGES, ids=lambda value: value)
def test_the_code_of_a_page_is_in_its_example(name, page):
    files = [
        path.read_text() for kind in ("py", "lua") for path in (ROOT / "examples" / name).rglob(f"*.{kind}")
    ]
    blocks = CODE.findall((ROOT / page).read_text())
    assert blocks
    for block in blocks:
        assert any(block in text for text in files), block


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_names_the_command_that_runs_its_example(name):
    page = (ROOT / "examples" / name / "README.md").read_text()
    command = f"example-{name.replace('_', '-')}"
    assert f"```sh\nmake {command}\n```" in page
    assert f"\n{command}: " in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", [".", *EXAMPLES])
def test_the_links_of_a_page_lead_to_files(name):
    page = ROOT / "examples" / name / "README.md"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_example_is_listed():
    listed = re.findall(r"^\| \[(\w+)\]", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    folders = {path.parent.name for path in ROOT.glob("examples/*/__init__.py")} - {"embedded"}
    assert {"demo", "kubernetes", *EXAMPLES} | folders == set(listed)
