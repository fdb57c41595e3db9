"""docs/semantics.md has all of the contract's semantics, and each names tests that exist and say so."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, page

SECTIONS = re.split(r"^## (?=\d+\. )", page("docs/semantics.md").text, flags=re.MULTILINE)[1:]
NAMED = [
    (int(section.split(".")[0]), path, name)
    for section in SECTIONS
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section)
]


def test_all_sixteen_are_there_in_their_order():
    assert [int(section.split(".")[0]) for section in SECTIONS] == list(range(1, 17))


@pytest.mark.parametrize("number", range(1, 17))
def test_each_names_its_tests(number):
    assert [name for of, _, name in NAMED if of == number]


@pytest.mark.parametrize(("number", "path", "name"), NAMED)
def test_each_named_test_exists(number, path, name):
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"
