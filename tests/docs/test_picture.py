"""docs/img/periodic.svg shows four runs that do not overlap, in light and dark mode; page.png is small."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from tests.docs.pages import DOCS

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ET.parse(DOCS / "img" / "periodic.svg").getroot()
LEGEND = 270  # below this line the picture explains its signs


def shapes(kind, tag):
    return [shape for shape in PICTURE.iter(f"{SVG}{tag}") if shape.get("class") == kind]


def bars(kind):
    """From where to where the bars reach, without the legend's."""
    found = [bar for bar in shapes(kind, "rect") if float(bar.get("y")) < LEGEND]
    return [(float(bar.get("x")), float(bar.get("x")) + float(bar.get("width"))) for bar in found]


def test_four_runs_are_completed_and_one_is_killed():
    assert (len(bars("run")), len(bars("killed"))) == (4, 1)


def test_no_two_runs_overlap():
    for one, other in pairwise(sorted(bars("run") + bars("killed"))):
        assert one[1] <= other[0]


@pytest.mark.parametrize("kind", ["ran", "skipped"])
def test_four_of_the_eight_messages_run_and_four_are_skipped(kind):
    assert len(shapes(kind, "path")) == 4 + 1  # and one in the legend


def test_the_summary_says_so():
    assert PICTURE.findtext(f"{SVG}title").endswith(
        "8 messages: 4 runs completed, 4 skipped, 0 overlaps, 0 lost"
    )


def test_every_colour_has_a_dark_counterpart():
    light, _, dark = PICTURE.findtext(f"{SVG}style").partition("@media (prefers-color-scheme: dark)")
    coloured = [line.split("{")[0].strip() for line in light.splitlines() if "#" in line]
    assert coloured
    assert all(f"  {kind} {{" in dark for kind in coloured)


def test_the_picture_of_the_page_is_a_small_png():
    """`python -m docs.img.page` makes it anew."""
    picture = (DOCS / "img" / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000
    assert int.from_bytes(picture[16:20], "big") == 1180, "another width"


REPLACED = ET.parse(DOCS / "img" / "replace.svg").getroot()


def test_of_five_calls_two_are_replaced_in_their_run_and_one_is_completed():
    """`python -m docs.img.replace` makes it anew."""
    bars = [bar for bar in REPLACED.iter(f"{SVG}rect") if float(bar.get("y")) < 256]
    runs = [bar for bar in bars if bar.get("class") in {"killed", "run"}]
    assert [bar.get("class") for bar in runs] == ["killed", "killed", "run"]
    for one, other in pairwise(runs):
        assert float(one.get("x")) + float(one.get("width")) <= float(other.get("x"))
    assert REPLACED.findtext(f"{SVG}title").endswith(
        "5 calls: 2 replaced while they ran, 2 while they waited, 1 completed, 0 overlaps"
    )
    assert REPLACED.findtext(f"{SVG}style") == PICTURE.findtext(f"{SVG}style")


LIMITED = ET.parse(DOCS / "img" / "limits.svg").getroot()


def test_of_eight_calls_three_run_at_once():
    """`python -m docs.img.limits` makes it anew."""
    bars = [
        bar for bar in LIMITED.iter(f"{SVG}rect") if bar.get("class") == "run" and bar.get("width") != "24"
    ]
    runs = [(float(bar.get("x")), float(bar.get("x")) + float(bar.get("width"))) for bar in bars]
    assert len(runs) == 8
    assert max(sum(begin <= one < end for begin, end in runs) for one, _ in runs) == 3
