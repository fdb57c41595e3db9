"""The site: its menu, its links to the repository, and no files from other servers."""

from __future__ import annotations

import yaml

import celery_rlock
from tests.docs.pages import DOCS, ROOT, SITE, page


class _Loader(yaml.SafeLoader):
    """mkdocs.yml may name Python objects. The tests do not need them."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)

CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)


def listed(entry):
    if isinstance(entry, str):
        return [entry]
    entries = entry if isinstance(entry, list) else list(entry.values())
    return [page for each in entries for page in listed(each)]


def test_every_page_is_in_the_menu_once():
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(listed(CONFIG["nav"])) == pages


def test_the_menu_has_four_kinds_of_pages():
    assert [kind for section in CONFIG["nav"] for kind in section] == [
        "Learn",
        "How to",
        "Explanation",
        "Reference",
    ]


def test_the_site_shows_the_version_the_repository_and_the_next_page():
    assert celery_rlock.__version__ in CONFIG["copyright"]
    assert CONFIG["site_url"] == SITE
    assert CONFIG["repo_url"] == "https://github.com/celery-rlock/celery-rlock"
    assert "navigation.footer" in CONFIG["theme"]["features"]


def test_the_site_can_be_read_without_a_network():
    assert CONFIG["theme"]["font"] is False
    own = [*CONFIG.get("extra_css", ()), *CONFIG.get("extra_javascript", ())]
    assert all((DOCS / path).exists() for path in own)


def test_the_api_page_has_every_public_name():
    shown = page("docs/reference.md").text
    assert [name for name in celery_rlock.__all__ if name not in shown] == []


def test_llms_txt_has_the_form_of_llmstxt_org():
    lines = (DOCS / "llms.txt").read_text().splitlines()
    assert lines[0] == "# celery-rlock"
    assert lines[2].startswith("> ")
    assert [line for line in lines if line.startswith("#")][-1] == "## Optional"


def test_llms_txt_links_only_to_pages_of_the_site():
    links = page("docs/llms.txt").links()
    assert all(link.startswith(SITE) for link in links)
    pages = {link.removeprefix(SITE).replace(".html", ".md") for link in links}
    assert pages <= set(listed(CONFIG["nav"]))
