"""`python -m examples.periodic`: its figures, and that it sees when they are wrong."""

from __future__ import annotations

import pytest

from examples.periodic.__main__ import AN_HOUR, TICKS
from examples.periodic.two_beats import HOLD

LOCKED = ', lock_from="publish"'


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """As it is, and with a duplicate published for every tick; at the same time, for they mostly wait."""
    unlocked = broken_copy("periodic/catch_up.py", LOCKED, "")
    return start_example("periodic"), start_example("periodic", root=unlocked)


def test_it_ends_well_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


def test_two_beats_run_everything_twice_without_the_lock(example):
    first, second, published, runs, skipped, _ = example.figures("without the lock")
    assert first + second >= runs >= published >= 2 * TICKS
    assert skipped == 0


def test_two_beats_skip_what_the_other_has_run(example):
    first, second, published, runs, skipped, closest = example.figures("with LockedTask")
    assert first + second >= runs + skipped >= published >= 2 * TICKS
    assert skipped > 0
    assert closest >= HOLD


def test_an_hour_of_ticks_is_one_message_and_one_run(example):
    ticks, published, runs = example.figures('lock_from="publish"')
    assert ticks >= AN_HOUR
    assert (published, runs) == (1, 1)
    plain_hour = example.output().rpartition("without the lock")[2].splitlines()[0]
    assert (
        min(map(int, plain_hour.split())) >= AN_HOUR - 1
    )  # beat may be stopped before it has counted the last


def test_it_fails_when_every_tick_is_published(broken):
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures('lock_from="publish"')[2] >= AN_HOUR
