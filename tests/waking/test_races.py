"""A release between the busy answer and the place among the waiters is not lost."""

from __future__ import annotations

import pytest

from tests.waking.fleet import SOON, await_busy

ROUNDS = 50


@pytest.fixture
def woke_somebody(waiters):
    """Whether the last release found somebody to wake."""
    return lambda name: waiters.client.exists(f"rlock:{{{name}}}:woken")


def test_a_release_before_the_waiter_has_its_place(fleet, send, name, hold, woke_somebody):
    """Semantics 12: who takes a place learns that the lock is free."""
    missed = 0
    for turn in range(ROUNDS):
        key = f"{name}-{turn}"
        with hold(key):
            sent = send("work", key)
            await_busy(sent)
        missed += not woke_somebody(key)
        assert sent.get(timeout=SOON) == sent.id
    assert missed > 0, "every release came too late to prove anything"


def test_a_short_run_and_a_waiter_published_at_the_same_moment(fleet, send, name, waiters):
    """Semantics 12: runs of 0 to 25 ms, so that their ends fall everywhere around the waiter's arrival."""
    for turn in range(ROUNDS):
        key = f"{name}-{turn}"
        sent = [send("work", key, turn / 2000) for _ in range(2)]
        for task in sent:
            assert task.get(timeout=SOON) == task.id
        assert not waiters(key)
