"""Workers that die, or are too busy, while a task waits in them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.processes import wait_until
from tests.waking.fleet import BACKOFF, SOON, kill

KEPT_BEYOND_BACKOFF = 60.0
SHORT_LEASE = 2.0
DEAD = 5
ROUNDS = 5
#: The time that whoever was woken has to come. Who is heard by nobody gets none.
TRUST = 1.0


@pytest.fixture
def victim(start_fleet, queue):
    """A worker with one pool process and a queue of its own."""
    with start_fleet(1, queues=[queue]) as [worker]:
        yield worker


@pytest.fixture
def wait_in_order(send, name, queue, waiters):
    """The first wait in the victim, the last two in the fleet."""

    def wait(in_victim=1):
        first = [send("work", name, queue=queue) for _ in range(in_victim)]
        waiters.await_count(name, in_victim)
        others = []
        for _ in range(2):
            others.append(send("work", name))
            waiters.await_count(name, in_victim + len(others))
        return first[0], others

    return wait


def await_start(records, name, of):
    def started():
        return any(entry["id"] == of.id for entry in records(name))

    wait_until(started, timeout=SOON, what="its start")


def test_a_dead_workers_waiters_are_passed_over(victim, fleet, wait_in_order, name, hold, waiters, starts):
    """Semantics 12: the dead ones' places end by themselves, and hold nobody up."""
    with hold(name):
        _, [second, third] = wait_in_order(DEAD)
        kill(victim)
        assert len(waiters(name)) == DEAD + 2
        assert 0 < waiters.kept_for(name) <= BACKOFF + KEPT_BEYOND_BACKOFF
    for task in (second, third):
        assert task.get(timeout=SOON) == task.id
    assert starts(name) == [second.id, third.id]
    assert not waiters(name)


def test_nobody_waits_for_the_dead(fleet, send, name, hold, waiters, records):
    """Semantics 12: at least one hand-over must be quicker than the time that a woken waiter may take."""
    hand_overs = []
    for _ in range(ROUNDS):
        with hold(name):
            sent = send("work", name)
            waiters.await_count(name, 1)
            waiters.put_in_front(name, [f"dead{number}:0:task" for number in range(DEAD)])
        released = time.time()
        assert sent.get(timeout=SOON) == sent.id
        hand_overs.append(next(entry["at"] for entry in records(name) if entry["id"] == sent.id) - released)
    assert min(hand_overs) < TRUST


def test_a_worker_that_dies_as_it_is_woken_is_not_waited_for(
    victim, fleet, wait_in_order, name, hold, waiters, starts
):
    """Semantics 12: the wake reached a connection that nobody reads any more; the second one looks."""
    with hold(name):
        _, [second, third] = wait_in_order()
        os.kill(victim.pid, signal.SIGSTOP)
    wait_until(lambda: len(waiters(name)) < 3, timeout=SOON, what="the first one's turn")
    for task in (second, third):
        assert task.get(timeout=SOON) == task.id
    assert starts(name) == [second.id, third.id]
    kill(victim)


def test_a_woken_waiter_that_gets_no_pool_slot_lets_the_next_one_run(
    victim, fleet, wait_in_order, send, queue, store, name, hold, waiters, records, count
):
    """Semantics 12: and runs, once, when its worker has time."""
    with hold(name):
        first, [second, third] = wait_in_order()
        other = send("until_told", f"{name}-other", queue=queue)
        await_start(records, f"{name}-other", other)
    for task in (second, third):
        assert task.get(timeout=SOON) == task.id
    assert not count(name, "start")[first.id]
    store.set(f"told:{name}-other", 1, ex=60)
    assert first.get(timeout=SOON) == first.id
    assert count(name, "end") == {task.id: 1 for task in (first, second, third)}
    assert not waiters(name)


def test_the_lease_of_a_dead_holder_ends_the_waiting(
    victim, fleet, send, queue, name, waiters, records, count
):
    """Semantics 7 and 12: nobody releases, so the waiter asks when the lease should have ended."""
    holder = send("short_lease", name, 60, queue=queue)
    await_start(records, name, holder)
    waiter = send("short_lease", name)
    waiters.await_count(name, 1)
    time.sleep(2 * SHORT_LEASE)  # its first look finds the lease renewed
    assert not count(name, "start")[waiter.id]
    kill(victim)
    assert waiter.get(timeout=SHORT_LEASE + SOON) == waiter.id
    assert count(name, "end") == {waiter.id: 1}
    assert not waiters(name)
