"""Who is woken, in which order, and what it costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.waking.fleet import SOON, await_busy, deliveries

WAITERS = 8
ROUNDS = 3
#: Whoever was woken may take a second to come; then it is the next one's turn.
TRUST = 0.8
#: A listener says something to itself when it has heard nothing for seconds.
A_FEW = 5


@pytest.fixture
def published(waiters):
    """How often anything was published on the lock's server, by scripts too."""
    return lambda: waiters.client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]


def send_in_order(send, name, how_many):
    """Each finds the lock busy before the next one is sent."""
    sent = []
    for _ in range(how_many):
        sent.append(send("work", name))
        await_busy(sent[-1])
    return sent


def longest_hand_over(entries):
    """From the end of a run to the start of the next."""
    runs = sorted(entries, key=lambda entry: entry["at"])
    return max(after["at"] - before["at"] for before, after in pairwise(runs) if after["event"] == "start")


def test_waiters_run_in_the_order_in_which_they_found_the_lock_busy(
    fleet, send, name, hold, waiters, starts, records
):
    """Over two workers; a round counts unless the machine was so busy that one came too late for its turn."""
    orderly = 0
    for turn in range(4 * ROUNDS):
        key = f"{name}-{turn}"
        with hold(key):
            sent = send_in_order(send, key, WAITERS)
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
    """Semantics 12: each is delivered when it is sent, and again when its turn has come."""
    sent = [send("work", name, 0.01) for _ in range(20)]
    for task in sent:
        task.get(timeout=2 * SOON)
    received = deliveries(fleet)
    assert sum(received[task.id] for task in sent) <= 2.5 * len(sent)
    assert count(name, "end") == {task.id: 1 for task in sent}


def test_a_release_tells_the_first_two_and_nobody_else(fleet, send, name, hold, waiters, published):
    """The first is woken, the second looks whether the first has come."""
    with hold(name):
        sent = [send("work", name) for _ in range(10)]
        waiters.await_count(name, 10)
        before = published()
    for task in sent:
        task.get(timeout=SOON)
    assert published() - before <= 2 * len(sent) + A_FEW


def test_nothing_is_published_when_nobody_waits(fleet, send, name, published):
    """Semantics 12: an uncontended lock tells nobody anything."""
    before = published()
    sent = [send("work", f"{name}-{turn}") for turn in range(20)]
    for task in sent:
        task.get(timeout=SOON)
    assert published() == before
