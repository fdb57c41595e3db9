"""docs/comparison.md has what the benchmark measured, and the README's table repeats it without a change."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers_app import PLAIN, PLAIN_AGAIN, VARIANTS
from benchmarks.peers_cost import KINDS
from tests.docs.pages import ROOT, page

PAGE = page("docs/comparison.md").text
#: What the README calls the variants.
IN_THE_README = {
    "celery-rlock": "LockedTask",
    "celery-once": "celery-once",
    "celery-singleton": "celery-singleton",
    "Celery's cookbook recipe": "recipe, SET NX",
    "`redis.lock.Lock` in the task": "recipe, redis.lock.Lock",
}
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "benchmarks/peers.txt").read_text(), re.MULTILINE))


def measured(name):
    return PAGE.partition(f"<!-- measured: {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


@pytest.mark.parametrize("variant", KINDS)
def test_every_variant_has_a_cost(variant):
    assert f"\n| {variant} |" in measured("cost")


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in (PLAIN, PLAIN_AGAIN)])
def test_every_lock_has_a_behaviour(variant):
    assert f"\n| {variant} |" in measured("behaviour")


def test_the_figures_have_a_date_and_the_pinned_versions():
    assert re.search(r"Measured on \d{4}-\d{2}-\d{2}", measured("cost"))
    for name, version in PINNED.items():
        assert f"{name} {version}" in measured("cost")


@pytest.mark.parametrize(("called", "variant"), IN_THE_README.items())
def test_the_readme_repeats_what_was_measured(called, variant):
    assert row(page("README.md").text, called) == row(measured("behaviour"), variant)


def row(text, first_cell):
    """The other cells of the table row that begins with this cell."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first_cell} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]
