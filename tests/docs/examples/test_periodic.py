"""`python -m examples.periodic`: its figures are right, and it fails when they are wrong."""

from __future__ import annotations

import pytest

from examples.periodic.__main__ import AN_HOUR, TICKS
from examples.periodic.two_beats import HOLD

#: It takes long, and shows no promise of docs/semantics.md that other tests do not show.
pytestmark = pytest.mark.slow

LOCKED = ', lock_from="publish"'


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """The example, and a copy that publishes every tick. Both mostly wait, so they run at the same time."""
    unlocked = broken_copy("periodic/catch_up.py", LOCKED, "")
    return start_example("periodic"), start_example("periodic", root=unlocked)


def test_it_succeeds_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


def test_two_beats_run_everything_twice_without_the_lock(example):
    first, second, published, runs, skipped, _ = example.figures("without the lock")
    assert first + second >= runs >= published >= 2 * TICKS
    assert skipped == 0


def test_two_beats_run_each_tick_once_with_the_lock(example):
    first, second, published, runs, skipped, closest = example.figures("with LockedTask")
    assert first + second >= runs + skipped >= published >= 2 * TICKS
    assert skipped > 0
    # A run is counted a moment after it took its lock, and a loaded machine makes that moment longer.
    assert closest > HOLD / 2


def test_an_hour_of_ticks_is_one_message_and_one_run(example):
    ticks, published, runs = example.figures('lock_from="publish"')
    assert ticks >= AN_HOUR
    assert (published, runs) == (1, 1)
    plain_hour = example.output().rpartition("without the lock")[2].splitlines()[0]
    # Beat may be stopped before it has counted its last tick.
    assert min(map(int, plain_hour.split())) >= AN_HOUR - 1


def test_it_fails_when_every_tick_is_published(broken):
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures('lock_from="publish"')[2] >= AN_HOUR
