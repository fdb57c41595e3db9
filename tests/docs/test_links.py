"""Links lead somewhere. Nothing here asks the network."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, Page, pages

EXTERNAL = re.compile(r"https://[a-z0-9.-]+\.[a-z]{2,}(/\S*)?", re.IGNORECASE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    for link in page.links():
        if ":" in link.partition("/")[0]:
            assert EXTERNAL.fullmatch(link), f"{link} is no https address"
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), link
        assert path.is_relative_to(ROOT), link
        if anchor:
            assert anchor in Page(path).anchors(), link


def test_the_check_sees_a_broken_link(tmp_path):
    broken = tmp_path / "page.md"
    broken.write_text("# A `title`\n\n[one](gone.md) `[two](code.md)` ![three](img/x.svg) [four](#a-title)\n")
    assert Page(broken).links() == ["gone.md", "img/x.svg", "#a-title"]
    assert Page(broken).anchors() == {"a-title"}
