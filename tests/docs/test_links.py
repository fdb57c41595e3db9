"""Links lead to something that exists.

No test here uses the network. Absolute links to this project are looked up in the tree.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, FILES, PICTURES, ROOT, SITE, Page, local_path, pages

FOREIGN = re.compile(r"https://[a-z0-9.-]+\.[a-z]{2,}(/\S*)?", re.IGNORECASE)
#: PyPI shows the README, and llms.txt is read alone: both need absolute links.
SHOWN_ELSEWHERE = [Page(ROOT / "README.md"), Page(ROOT / "README.zh-CN.md"), Page(DOCS / "llms.txt")]


@pytest.mark.parametrize("page", [*pages(), Page(DOCS / "llms.txt")], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    assert [link for link in page.links() if not leads_somewhere(page, link)] == []


@pytest.mark.parametrize("page", SHOWN_ELSEWHERE, ids=lambda page: page.name)
def test_pages_that_are_shown_elsewhere_have_absolute_links(page):
    assert [link for link in page.links() if not link.startswith("https://")] == []


def leads_somewhere(page, link):
    target, _, anchor = link.partition("#")
    if ":" in link.partition("/")[0]:
        path = local_path(link)
        if path is None:
            return FOREIGN.fullmatch(link) is not None
        within = ROOT
    else:
        path = Path(os.path.normpath(page.path.parent / target)) if target else page.path
        within = DOCS if page.path.is_relative_to(DOCS) else ROOT  # the site has only what is in docs
    if not path.exists() or not path.is_relative_to(within):
        return False
    return not anchor or anchor in Page(path).anchors()


def test_a_broken_link_is_found():
    contributing = Page(ROOT / "CONTRIBUTING.md")
    broken = ("gone.md", "docs/faq.md#gone", "../elsewhere.md", "http://plain.example", "ftp://x")
    absolute = (f"{SITE}gone.html", f"{SITE}faq.html#gone", f"{FILES}GONE", f"{PICTURES}docs/img/gone.svg")
    for link in broken + absolute:
        assert not leads_somewhere(contributing, link), link


def test_a_link_that_works_is_accepted():
    contributing = Page(ROOT / "CONTRIBUTING.md")
    relative = ("LICENSE", "docs/quickstart.md#1-install", "https://semver.org/")
    absolute = (
        SITE,
        f"{SITE}quickstart.html#1-install",
        f"{FILES}LICENSE",
        f"{PICTURES}docs/img/periodic.svg",
    )
    for link in relative + absolute:
        assert leads_somewhere(contributing, link), link


def test_a_page_of_the_site_links_to_pages_of_the_site():
    assert leads_somewhere(Page(DOCS / "faq.md"), "redis.md")
    assert not leads_somewhere(Page(DOCS / "faq.md"), "../README.md")


def test_a_link_inside_code_is_not_a_link(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '# A `title`\n\n[one](one.md) `[two](code.md)` ![three](img/x.svg) <img src="four.svg">\n'
    )
    assert Page(page).links() == ["one.md", "img/x.svg", "four.svg"]
