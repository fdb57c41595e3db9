"""docs/comparison.md has what the benchmark measured: every variant in both tables, dated, with versions."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers_app import VARIANTS
from tests.docs.pages import ROOT, page

PAGE = page("docs/comparison.md").text
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "benchmarks/peers.txt").read_text(), re.MULTILINE))


def measured(name):
    return PAGE.partition(f"<!-- measured: {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_its_cost(variant):
    assert f"\n| {variant} |" in measured("cost")


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "plain task"])
def test_every_lock_has_its_behaviour(variant):
    assert f"\n| {variant} |" in measured("behaviour")


def test_figures_have_a_date_and_the_versions_that_are_pinned():
    assert re.search(r"Measured on \d{4}-\d{2}-\d{2}", measured("surroundings"))
    for name, version in PINNED.items():
        assert f"{name} {version}" in measured("surroundings")
