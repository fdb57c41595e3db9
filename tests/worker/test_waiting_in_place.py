"""Waiting in place: `RLock.acquire()` and `lock_wait`."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from celery_rlock import LockBusy
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.proxy import Proxy
from tests.worker.awaiting import SOON
from tests.worker.contender import Contender, counter
from tests.worker.proj.waiting import LEASE

ROUNDS = 4
#: A waiter that is not woken asks every two seconds.
WOKEN_WITHIN = 1.0
KEPT = 60.0


class Waiter(threading.Thread):
    """Acquires the lock in a thread of its own; `at` is the time when it has it."""

    def __init__(self, lock, **options):
        super().__init__(daemon=True)
        self._lock, self._options = lock, options
        self.at = None

    def run(self):
        if self._lock.acquire(**self._options):
            self.at = time.time()
            self._lock.release()


def test_a_release_wakes_a_thread_that_waits_in_place(name, hold, waiters):
    """Semantics 12: at least one hand-over is too quick for a waiter that asks every two seconds."""
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


def test_many_threads_of_many_processes_take_turns(redis_for_locks, name, waiters):
    """Semantics 1 and 12: each adds one to a counter under the lock, and no addition is lost."""
    with ExitStack() as stack:
        contenders = [Contender(redis_for_locks, name, threads=3, rounds=5) for _ in range(2)]
        for contender in contenders:
            stack.enter_context(contender).launch()
        for contender in contenders:
            assert contender.wait(3 * SOON) == 0, contender.log
    assert int(waiters.client.get(counter(name))) == 2 * 3 * 5
    assert not waiters(name)


def test_a_waiter_in_place_does_not_poll(redis_for_locks, name, hold, waiters):
    """Semantics 12: woken, not polled."""
    with Proxy(redis_for_locks.port) as proxy:
        waiter = Waiter(ReentrantLock(name, lock_server=RedisLockServer(connect(proxy.url)), ttl=LEASE))
        with hold(name):
            waiter.start()
            waiters.await_count(name, 1)
            before = len(proxy.seen)
            time.sleep(1.5)
            asked = len(proxy.seen) - before
        waiter.join(SOON)
        assert waiter.at is not None
    assert asked < 5


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


def test_a_task_that_ends_its_wait_leaves_no_place(fleet, send, name, hold, waiters, records):
    with hold(name):
        sent = send("in_place_briefly", name)
        waiters.await_count(name, 1)
        with pytest.raises(LockBusy):
            sent.get(timeout=SOON)
        assert not waiters(name)
    assert not records(name)


def test_a_killed_process_that_waited_in_place_is_passed_over(redis_for_locks, name, hold, waiters):
    """Semantics 12: its place ends by itself, and delays no other waiter."""
    with Contender(redis_for_locks, name) as dead, Contender(redis_for_locks, name) as alive:
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
