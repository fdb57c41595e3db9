"""Links lead somewhere. Nothing here asks the network."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, Page, pages

EXTERNAL = re.compile(r"https://[a-z0-9.-]+\.[a-z]{2,}(/\S*)?", re.IGNORECASE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    assert [link for link in page.links() if not leads_somewhere(page, link)] == []


def leads_somewhere(page, link):
    if ":" in link.partition("/")[0]:
        return EXTERNAL.fullmatch(link) is not None
    target, _, anchor = link.partition("#")
    path = Path(os.path.normpath(page.path.parent / target)) if target else page.path
    within = DOCS if page.path.is_relative_to(DOCS) else ROOT  # the site has nothing else
    if not path.exists() or not path.is_relative_to(within):
        return False
    return not anchor or anchor in Page(path).anchors()


def test_the_check_sees_broken_links():
    readme = Page(ROOT / "README.md")
    for link in ("gone.md", "docs/faq.md#gone", "../elsewhere.md", "http://plain.example", "ftp://x"):
        assert not leads_somewhere(readme, link)
    for link in ("LICENSE", "docs/faq.md#does-it-work-with-django", "https://semver.org/", "#two-commands"):
        assert leads_somewhere(readme, link)


def test_a_page_of_the_site_links_to_pages_of_the_site():
    assert leads_somewhere(Page(DOCS / "faq.md"), "redis.md")
    assert not leads_somewhere(Page(DOCS / "faq.md"), "../README.md")


def test_links_in_code_are_no_links(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '# A `title`\n\n[one](one.md) `[two](code.md)` ![three](img/x.svg) <img src="four.svg">\n'
    )
    assert Page(page).links() == ["one.md", "img/x.svg", "four.svg"]
