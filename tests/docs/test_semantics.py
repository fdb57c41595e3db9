"""docs/semantics.md has all twenty-one promises, each with tests that exist.

The README gives the same numbers and titles to the same promises.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, page

NUMBERS = range(1, 22)
SECTIONS = re.split(r"^## (?=\d+\. )", page("docs/semantics.md").text, flags=re.MULTILINE)[1:]
NAMED = [
    (int(section.split(".")[0]), path, name)
    for section in SECTIONS
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section)
]


HEADINGS = {
    int(number): title for number, title in re.findall(r"^(\d+)\. (.+)", "\n".join(SECTIONS), re.MULTILINE)
}


def listed(readme):
    """The numbered promises of a README: their numbers, and the words in bold."""
    return dict(re.findall(r"^(\d+)\. \*\*(.+?)[.。]?\*\*", page(readme).prose, re.MULTILINE))


def test_all_twenty_one_promises_are_there_in_order():
    assert [int(section.split(".")[0]) for section in SECTIONS] == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_promise_names_its_tests(number):
    assert [name for of, _, name in NAMED if of == number]


@pytest.mark.parametrize(("number", "path", "name"), NAMED)
def test_each_named_test_exists(number, path, name):
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


@pytest.fixture(scope="module")
def not_slow():
    """The tests that `make test` runs, of the files that the page names."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow", "-p", "no:xdist"]
    files = sorted({path for _, path, _ in NAMED})
    printed = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^(tests/[\w/]+\.py)::(?:\w+::)?(\w+)", printed, re.MULTILINE))


@pytest.mark.parametrize("number", NUMBERS)
def test_make_test_shows_each_promise(number, not_slow):
    """At least one of the tests that a promise names is not marked slow, with one of its parameters."""
    assert not_slow & {(path, name) for of, path, name in NAMED if of == number}


def test_the_readme_has_the_same_promises_under_the_same_numbers():
    assert {int(number): title for number, title in listed("README.md").items()} == HEADINGS


def test_the_chinese_readme_has_the_same_numbers():
    assert list(map(int, listed("README.zh-CN.md"))) == list(NUMBERS)
