"""Which waiters a release wakes, in which order, and at which cost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.fleet import deliveries
from tests.worker.awaiting import SOON, await_busy, lock

WAITERS = 8
ROUNDS = 3
RACES = 30
#: A woken waiter has a second to come; then it is the next one's turn.
TRUST = 0.8
#: A listener that has heard nothing for some seconds publishes a message to itself.
A_FEW = 5


@pytest.fixture
def published(waiters):
    """How many messages were published on the lock server, those of scripts included."""
    return lambda: waiters.client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]


@pytest.fixture
def send_in_order(send, waiters):
    """Sends tasks, each after the one before has its place in line."""

    def send_all(name, how_many):
        sent = []
        for _ in range(how_many):
            sent.append(send("work", name))
            waiters.await_count(name, len(sent))
        return sent

    return send_all


def longest_hand_over(entries):
    """The longest time from the end of a run to the start of the next."""
    runs = sorted(entries, key=lambda entry: entry["at"])
    return max(after["at"] - before["at"] for before, after in pairwise(runs) if after["event"] == "start")


def test_waiters_run_in_the_order_in_which_they_found_the_lock_busy(
    fleet, send_in_order, name, hold, waiters, starts, records
):
    """Semantics 12, over two workers. A round counts unless a waiter came so late that it lost its turn."""
    orderly = 0
    for turn in range(4 * ROUNDS):
        key = f"{name}-{turn}"
        with hold(key):
            sent = send_in_order(key, WAITERS)
            waiters.await_count(key, WAITERS)
        for task in sent:
            task.get(timeout=SOON)
        if longest_hand_over(records(key)) < TRUST:
            orderly += 1
            assert starts(key) == [task.id for task in sent]
        if orderly == ROUNDS:
            break
    assert orderly == ROUNDS


def test_many_waiters_cost_few_deliveries(fleet, send, name, count):
    """Semantics 12: each is delivered when it is sent, and again when it is woken."""
    sent = [send("work", name, 0.01) for _ in range(20)]
    for task in sent:
        task.get(timeout=2 * SOON)
    received = deliveries(fleet)
    assert sum(received[task.id] for task in sent) <= 2.5 * len(sent)
    assert count(name, "end") == {task.id: 1 for task in sent}


def test_a_release_wakes_the_first_two_waiters_only(fleet, send, name, hold, waiters, published):
    """The first runs, and the second looks whether the first has come."""
    with hold(name):
        sent = [send("work", name) for _ in range(10)]
        waiters.await_count(name, 10)
        before = published()
    for task in sent:
        task.get(timeout=SOON)
    assert published() - before <= 2 * len(sent) + A_FEW


def test_a_release_publishes_nothing_when_no_task_waits(fleet, send, name, published):
    """Semantics 12: an uncontended lock costs no message."""
    before = published()
    sent = [send("work", f"{name}-{turn}") for turn in range(20)]
    for task in sent:
        task.get(timeout=SOON)
    assert published() == before


@pytest.fixture
def woke_a_waiter(waiters):
    """Whether the last release of a key found a waiter to wake."""
    return lambda name: waiters.client.exists(f"{lock(name)}:woken")


def test_a_release_before_the_waiter_has_its_place_is_not_lost(fleet, send, name, hold, woke_a_waiter):
    """Semantics 12: a waiter that takes its place learns that the lock is free."""
    missed = 0
    for turn in range(RACES):
        key = f"{name}-{turn}"
        with hold(key):
            sent = send("work", key)
            await_busy(sent)
        missed += not woke_a_waiter(key)
        assert sent.get(timeout=SOON) == sent.id
    assert missed > 0, "every release came too late to prove anything"


def test_a_short_run_and_a_waiter_published_at_the_same_moment(fleet, send, name, waiters):
    """Semantics 12: runs of 0 to 25 ms, so that they end at every moment around the waiter's arrival."""
    for turn in range(RACES):
        key = f"{name}-{turn}"
        sent = [send("work", key, 0.025 * turn / RACES) for _ in range(2)]
        for task in sent:
            assert task.get(timeout=SOON) == task.id
        assert not waiters(key)
