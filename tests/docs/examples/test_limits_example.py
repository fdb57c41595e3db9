"""`python -m examples.limits`: its figures are right, and it fails when they are wrong."""

from __future__ import annotations

import pytest

from examples.limits.app import PLACES, RATE

#: It takes long, and shows no promise of docs/semantics.md that other tests do not show.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """The example, and a copy whose places do not rest. Both run at the same time."""
    unrated = broken_copy("limits/app.py", ", lock_hold_at_least=PERIOD", "")
    return start_example("limits"), start_example("limits", root=unrated)


def test_it_succeeds_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


def test_the_limits_are_exceeded_without_the_lock_and_kept_with_it(example):
    ann, bob, calls = example.figures("without the lock")
    assert bob > PLACES["free"]
    assert calls > RATE
    ann, bob, calls = example.figures("with lock_limit")
    assert 1 < ann <= PLACES["pro"]
    assert (bob, calls) == (PLACES["free"], RATE)


def test_it_fails_when_the_places_do_not_rest(broken):
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures("with lock_limit")[2] > RATE
