"""The site: every page is in its menu, and nothing of it is fetched from elsewhere."""

from __future__ import annotations

import yaml

from tests.docs.pages import DOCS, ROOT


class _Loader(yaml.SafeLoader):
    """mkdocs.yml may name Python objects; here only the menu counts."""


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


def test_a_reader_without_a_network_misses_nothing():
    assert CONFIG["theme"]["font"] is False
    fetched = [*CONFIG.get("extra_css", ()), *CONFIG.get("extra_javascript", ())]
    assert all((DOCS / path).exists() for path in fetched)
