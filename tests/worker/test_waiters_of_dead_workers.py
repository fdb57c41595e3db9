"""Workers that die, or have no free pool process, while a task waits in them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.fleet import kill
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON
from tests.worker.proj.waiting import BACKOFF

KEPT_BEYOND_BACKOFF = 60.0
SHORT_LEASE = 2.0
DEAD = 5
ROUNDS = 5
#: A woken waiter has this time to come. A waiter whose process is gone gets none.
TRUST = 1.0


@pytest.fixture
def wait_in_order(send, name, queue, waiters):
    """The first tasks wait in the doomed worker, the last two in the fleet."""

    def wait(in_doomed=1):
        first = [send("work", name, queue=queue) for _ in range(in_doomed)]
        waiters.await_count(name, in_doomed)
        others = []
        for _ in range(2):
            others.append(send("work", name))
            waiters.await_count(name, in_doomed + len(others))
        return first[0], others

    return wait


def await_start_of(sent, records, name):
    def started():
        return any(entry["id"] == sent.id for entry in records(name))

    wait_until(started, timeout=SOON, what="its start")


def test_the_waiters_of_a_dead_worker_are_passed_over(
    doomed, fleet, wait_in_order, name, hold, waiters, starts
):
    """Semantics 12: their places end by themselves, and delay no other waiter."""
    with hold(name):
        _, [second, third] = wait_in_order(DEAD)
        kill(doomed)
        assert len(waiters(name)) == DEAD + 2
        assert 0 < waiters.kept_for(name) <= BACKOFF + KEPT_BEYOND_BACKOFF
    for task in (second, third):
        assert task.get(timeout=SOON) == task.id
    assert starts(name) == [second.id, third.id]
    assert not waiters(name)


def test_a_dead_waiter_delays_no_other_waiter(fleet, send, name, hold, waiters, records):
    """Semantics 12: at least one hand-over is quicker than the time that a woken waiter has."""
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
    doomed, fleet, wait_in_order, name, hold, waiters, starts
):
    """Semantics 12: its process no longer reads the wake-up; the second waiter looks at the lock."""
    with hold(name):
        _, [second, third] = wait_in_order()
        os.kill(doomed.pid, signal.SIGSTOP)
    wait_until(lambda: len(waiters(name)) < 3, timeout=SOON, what="the first one's turn")
    for task in (second, third):
        assert task.get(timeout=SOON) == task.id
    assert starts(name) == [second.id, third.id]
    kill(doomed)


def test_a_woken_waiter_without_a_free_pool_process_lets_the_next_one_run(
    doomed, fleet, wait_in_order, send, queue, tell, name, hold, waiters, records, count
):
    """Semantics 12: the first runs, once, when its worker has a free pool process."""
    with hold(name):
        first, [second, third] = wait_in_order()
        other = send("until_told", f"{name}-other", queue=queue)
        await_start_of(other, records, f"{name}-other")
    for task in (second, third):
        assert task.get(timeout=SOON) == task.id
    assert not count(name, "start")[first.id]
    tell(f"{name}-other")
    assert first.get(timeout=SOON) == first.id
    assert count(name, "end") == {task.id: 1 for task in (first, second, third)}
    assert not waiters(name)


def test_the_lease_of_a_dead_holder_ends_the_waiting(
    doomed, fleet, send, queue, name, waiters, records, count
):
    """Semantics 7 and 12: no process releases the lock, so the waiter asks when the lease ends."""
    holder = send("short_lease", name, 60, queue=queue)
    await_start_of(holder, records, name)
    waiter = send("short_lease", name)
    waiters.await_count(name, 1)
    time.sleep(1.5 * SHORT_LEASE)  # its first look finds the lease renewed
    assert not count(name, "start")[waiter.id]
    kill(doomed)
    assert waiter.get(timeout=SHORT_LEASE + SOON) == waiter.id
    assert count(name, "end") == {waiter.id: 1}
    assert not waiters(name)
