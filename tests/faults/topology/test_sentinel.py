"""The lock behind Sentinel: as on one server, and through a failover."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.script import Script
from celery_rlock.core.scripts import Scripts
from celery_rlock.errors import LockUnavailable
from tests.support.processes import wait_until
from tests.topologies.waiting import (
    SOON,
    WOKEN_WITHIN,
    Waiter,
    WaitingProcess,
    await_renewal,
    await_replication,
    await_waiters,
    hand_over,
    has_lock,
    lease_left,
    through_outages,
    waiters_of,
)

LONG_LEASE = 60.0
#: Renewed each third: two thirds of it are more than a failover takes.
LEASE = 15.0
ROUNDS = 3


@pytest.fixture
def scripts(scripts_on, sentinel):
    return scripts_on(sentinel)


def test_a_lock_is_taken_entered_again_renewed_and_released(scripts, sentinel, name):
    lock = RLock(name, scripts=scripts, ttl=1)
    with lock:
        assert lease_left(sentinel.primary, name) > 0
        token = lock.token
        with lock:
            assert (lock.depth, lock.token) == (2, token)
        await_renewal(sentinel.primary, name)
        assert lock.owned()
    assert not lock.locked()


def test_a_hold_survives_the_death_of_the_primary(scripts, sentinel, name):
    """Semantics 7 and 14: what was replicated is renewed where it is now, with the scripts loaded again."""
    lock = RLock(name, scripts=scripts, ttl=LEASE)
    with lock:
        token = lock.token
        await_replication(sentinel.replica, name)
        new = sentinel.await_failover(sentinel.kill_primary())
        await_renewal(new, name)
        assert new.client().script_exists(Script.load("renew").sha) == [True]
        lock.ensure()
        assert through_outages(lock.owned)
        through_outages(lock.acquire)
        assert (lock.depth, lock.token) == (2, token)
        lock.release()
    assert lease_left(new, name) < 0
    with lock:
        assert lock.token > token


def test_a_hold_survives_a_primary_that_is_demoted_alive(scripts, sentinel, name):
    """Semantics 7: it answers READONLY, or nothing, and is left for the new one."""
    lock = RLock(name, scripts=scripts, ttl=LEASE)
    with lock:
        await_replication(sentinel.replica, name)
        new = sentinel.await_failover(sentinel.demote_primary())
        sentinel.mend()
        await_renewal(new, name)
        assert through_outages(lock.owned)
    assert lease_left(new, name) < 0


def test_what_is_released_while_there_is_no_primary_is_free_when_there_is_one(scripts, sentinel, name):
    """Semantics 5: long before its lease ends."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
    lock.acquire()
    await_replication(sentinel.replica, name)
    old = sentinel.kill_primary()
    lock.release()
    new = sentinel.await_failover(old)
    wait_until(lambda: not has_lock(new, name), timeout=LONG_LEASE / 3, what="the late release")


def test_a_thread_that_has_entered_again_keeps_what_it_could_not_release_before(scripts, sentinel, name):
    """Semantics 3: a late release is of the past, not of what the same owner holds by now."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
    lock.acquire()
    await_replication(sentinel.replica, name)
    old = sentinel.kill_primary()
    lock.release()
    through_outages(lock.acquire)
    time.sleep(2)  # whatever would be released late has the time to be
    assert lock.owned()
    lock.release()
    assert not has_lock(sentinel.await_failover(old), name)


def test_an_old_primary_that_is_back_and_takes_writes_is_not_asked(scripts, sentinel, name):
    """Semantics 1: the connections to it are still good, and it does not know better."""
    locks = [RLock(f"{name}-{number}", scripts=scripts, ttl=LONG_LEASE) for number in range(2)]
    with locks[0]:
        old = sentinel.primary
        old.pause()
        new = sentinel.await_failover(old)
        old.resume()
        with locks[1]:
            assert has_lock(new, locks[1].key)
            assert not has_lock(old, locks[1].key)


def test_an_answer_of_a_primary_that_slept_through_a_failover_does_not_count(sentinel, name):
    """Semantics 1: it was asked while it was the primary, and answers when another one is."""
    scripts = Scripts(connect(f"{sentinel.url}&socket_timeout=60"))
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
    with RLock(f"{name}-before", scripts=scripts):
        pass  # so that there is a connection
    old = sentinel.primary
    old.pause()
    with ThreadPoolExecutor(1) as another:
        held = another.submit(lambda: lock.acquire() and lock.held)
        new = sentinel.await_failover(old)
        old.resume()
        assert held.result(timeout=SOON)
    assert has_lock(new, name)


def test_who_waits_in_place_is_woken_after_a_failover(scripts, sentinel, name):
    """Semantics 12: on the new primary, in this process and in another."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
    with WaitingProcess(sentinel.url, name) as elsewhere:
        with lock:
            here = Waiter(lock)
            elsewhere.launch()
            await_waiters(lambda: sentinel.primary, name, 2)
            await_replication(sentinel.replica, name)
            new = sentinel.await_failover(sentinel.kill_primary())
            await_waiters(lambda: new, name, 2)
        assert elsewhere.wait(SOON) == 0, elsewhere.log
        here.join(SOON)
        assert here.at is not None
    hand_overs = [hand_over(lock, name, lambda: new) for _ in range(ROUNDS)]
    assert min(hand_overs) < WOKEN_WITHIN
    assert not waiters_of(new, name)


def test_without_a_primary_the_lock_is_unavailable_soon(scripts, sentinel, name):
    """Semantics 16: nobody hangs while the sentinels have nobody to name."""
    lock = RLock(name, scripts=scripts, ttl=LEASE)
    replica = sentinel.replica
    replica.kill()
    sentinel.kill_primary()
    with pytest.raises(LockUnavailable):
        lock.acquire(blocking=False)
    replica.restart()
