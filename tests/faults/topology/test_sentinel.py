"""The lock behind Sentinel works as on one server, and survives a failover."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.script import Script
from tests.faults.topology.waiters import (
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
from tests.support.processes import wait_until

LONG_LEASE = 60.0
#: The lock is renewed after a third of it. The rest is longer than a failover takes.
LEASE = 15.0
ROUNDS = 3


@pytest.fixture
def lock_server(lock_server_on, sentinel):
    return lock_server_on(sentinel)


def test_a_lock_is_taken_entered_again_renewed_and_released(lock_server, sentinel, name):
    lock = ReentrantLock(name, lock_server=lock_server, ttl=1)
    with lock:
        assert lease_left(sentinel.primary, name) > 0
        token = lock.token
        with lock:
            assert (lock.depth, lock.token) == (2, token)
        await_renewal(sentinel.primary, name)
        assert lock.owned()
    assert not lock.locked()


def test_a_held_lock_survives_the_death_of_the_primary(lock_server, sentinel, name):
    """Semantics 7 and 14: the lock is renewed on the new primary, with the scripts loaded again."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LEASE)
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


@pytest.mark.slow
def test_a_held_lock_survives_the_demotion_of_a_living_primary(lock_server, sentinel, name):
    """Semantics 7: the old primary answers READONLY or nothing, and the client moves to the new one."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LEASE)
    with lock:
        await_replication(sentinel.replica, name)
        new = sentinel.await_failover(sentinel.demote_primary())
        sentinel.mend()
        await_renewal(new, name)
        assert through_outages(lock.owned)
    assert lease_left(new, name) < 0


@pytest.mark.slow
def test_a_lock_released_while_there_is_no_primary_is_free_after_the_failover(lock_server, sentinel, name):
    """Semantics 5: it is free long before its lease ends."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    lock.acquire()
    await_replication(sentinel.replica, name)
    old = sentinel.kill_primary()
    lock.release()
    new = sentinel.await_failover(old)
    wait_until(lambda: not has_lock(new, name), timeout=LONG_LEASE / 3, what="the late release")


@pytest.mark.slow
def test_a_late_release_does_not_free_a_lock_that_its_owner_has_taken_again(lock_server, sentinel, name):
    """Semantics 3: a late release belongs to the earlier ownership."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    lock.acquire()
    await_replication(sentinel.replica, name)
    old = sentinel.kill_primary()
    lock.release()
    through_outages(lock.acquire)
    time.sleep(2)  # time for the late release to arrive
    assert lock.owned()
    lock.release()
    assert not has_lock(sentinel.await_failover(old), name)


@pytest.mark.slow
def test_an_old_primary_that_is_back_and_takes_writes_gets_no_requests(lock_server, sentinel, name):
    """Semantics 1: connections to it still work, and it does not know of the failover yet."""
    locks = [
        ReentrantLock(f"{name}-{number}", lock_server=lock_server, ttl=LONG_LEASE) for number in range(2)
    ]
    with locks[0]:
        old = sentinel.primary
        old.pause()
        new = sentinel.await_failover(old)
        old.resume()
        with locks[1]:
            assert has_lock(new, locks[1].key)
            assert not has_lock(old, locks[1].key)


@pytest.mark.slow
def test_the_answer_of_a_primary_that_was_frozen_during_the_failover_does_not_count(sentinel, name):
    """Semantics 1: it got the request while it was the primary, and answers when it is not."""
    lock_server = RedisLockServer(connect(f"{sentinel.url}&socket_timeout=60"))
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    with ReentrantLock(f"{name}-before", lock_server=lock_server):
        pass  # opens the connection
    old = sentinel.primary
    old.pause()
    with ThreadPoolExecutor(1) as another:
        held = another.submit(lambda: lock.acquire() and lock.held)
        new = sentinel.await_failover(old)
        old.resume()
        assert held.result(timeout=SOON)
        assert has_lock(new, name)
        another.submit(lock.release).result(timeout=SOON)


@pytest.mark.slow
def test_waiters_are_woken_after_a_failover(lock_server, sentinel, name):
    """Semantics 12: on the new primary, in this process and in another one."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
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


@pytest.mark.slow
def test_without_a_primary_the_lock_is_unavailable_soon(lock_server, sentinel, name):
    """Semantics 16: no caller hangs while the sentinels know no primary."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LEASE)
    replica = sentinel.replica
    replica.kill()
    sentinel.kill_primary()
    with pytest.raises(LockUnavailable):
        lock.acquire(blocking=False)
    replica.restart()
