"""Waiting in place: `RLock.acquire()` and `lock_wait`."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from celery_rlock import LockBusy
from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts
from tests.support.proxy import Proxy
from tests.waking.contender import Contender, counter
from tests.waking.fleet import LONG_LEASE, SOON

ROUNDS = 4
#: Who is not woken asks every two seconds.
WOKEN_WITHIN = 1.0
KEPT = 60.0


class Waiter(threading.Thread):
    """Acquires the lock in a thread of its own, and notes when it has it."""

    def __init__(self, lock, **options):
        super().__init__(daemon=True)
        self._lock, self._options = lock, options
        self.at = None

    def run(self):
        if self._lock.acquire(**self._options):
            self.at = time.time()
            self._lock.release()


def test_a_release_wakes_who_waits_in_place(name, hold, waiters):
    """Semantics 12: at least one hand-over must be too quick for somebody who asks now and then."""
    hand_overs = []
    for _ in range(ROUNDS):
        waiter = Waiter(hold(name))
        with hold(name):
            waiter.start()
            waiters.await_count(name, 1)
        released = time.time()
        waiter.join(SOON)
        hand_overs.append(waiter.at - released)
        assert not waiters(name)
    assert min(hand_overs) < WOKEN_WITHIN


def test_a_release_wakes_a_task_that_waits_in_place(fleet, send, name, hold, waiters, records):
    """Semantics 12: `lock_wait`, in a pool process."""
    hand_overs = []
    for _ in range(ROUNDS):
        with hold(name):
            sent = send("in_place", name)
            waiters.await_count(name, 1)
        released = time.time()
        sent.get(timeout=SOON)
        hand_overs.append(next(entry["at"] for entry in records(name) if entry["id"] == sent.id) - released)
        assert not waiters(name)
    assert min(hand_overs) < WOKEN_WITHIN


def test_many_threads_of_many_processes_take_turns(lock_server, name, waiters):
    """Semantics 1 and 12: whoever is woken, nobody is alone in believing so."""
    with ExitStack() as stack:
        contenders = [Contender(lock_server, name, threads=3, rounds=5) for _ in range(2)]
        for contender in contenders:
            stack.enter_context(contender).launch()
        for contender in contenders:
            assert contender.wait(3 * SOON) == 0, contender.log
    assert int(waiters.client.get(counter(name))) == 2 * 3 * 5
    assert not waiters(name)


def test_who_waits_in_place_hardly_asks(lock_server, name, hold, waiters):
    """Semantics 12: told, not polling."""
    with Proxy(lock_server.port) as proxy:
        waiter = Waiter(RLock(name, scripts=Scripts(connect(proxy.url)), ttl=LONG_LEASE))
        with hold(name):
            waiter.start()
            waiters.await_count(name, 1)
            before = len(proxy.seen)
            time.sleep(3)
            asked = len(proxy.seen) - before
        waiter.join(SOON)
        assert waiter.at is not None
    assert asked < 10


def test_a_timeout_ends_the_waiting_and_leaves_no_place(name, hold, waiters):
    waiter = threading.Thread(target=lambda: answers.append(hold(name).acquire(timeout=1)), daemon=True)
    answers = []
    with hold(name):
        before = time.monotonic()
        waiter.start()
        waiters.await_count(name, 1)
        assert 0 < waiters.kept_for(name) <= KEPT
        waiter.join(SOON)
        assert time.monotonic() - before >= 1
        assert answers == [False]
        assert not waiters(name)


def test_a_task_whose_wait_is_over_leaves_no_place(fleet, send, name, hold, waiters, records):
    with hold(name):
        sent = send("in_place_briefly", name)
        waiters.await_count(name, 1)
        with pytest.raises(LockBusy):
            sent.get(timeout=SOON)
        assert not waiters(name)
    assert not records(name)


def test_a_killed_process_that_waited_in_place_is_passed_over(lock_server, name, hold, waiters):
    """Semantics 12: its place ends by itself, and holds nobody up."""
    with Contender(lock_server, name) as dead, Contender(lock_server, name) as alive:
        with hold(name):
            dead.launch()
            waiters.await_count(name, 1)
            alive.launch()
            waiters.await_count(name, 2)
            dead.kill()
            assert len(waiters(name)) == 2
            assert 0 < waiters.kept_for(name) <= KEPT
        assert alive.wait(SOON) == 0
    assert int(waiters.client.get(counter(name))) == 1
    assert not waiters(name)
