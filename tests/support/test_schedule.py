"""The order in which `make test` starts the files."""

from __future__ import annotations

import pytest

from tests.support.daemon import ROOT
from tests.support.schedule import LONGEST, SPLIT, part_of, place


def test_a_file_is_one_part():
    assert part_of("tests/unit/test_keys.py::test_a[x-y]") == "tests/unit/test_keys.py"


def test_each_value_of_a_split_file_is_one_part():
    [path] = SPLIT
    assert (
        part_of(f"{path}::test_a[redis-chained]")
        == part_of(f"{path}::test_a[redis-linked]")
        == f"{path}[redis]"
    )


def test_the_longest_part_comes_first_and_others_after_all_that_are_listed():
    assert sorted(["tests/unit/test_keys.py", LONGEST[1], LONGEST[0]], key=place)[:2] == list(LONGEST[:2])


@pytest.mark.parametrize("part", LONGEST)
def test_each_listed_file_exists(part):
    assert (ROOT / part.partition("[")[0]).is_file()
