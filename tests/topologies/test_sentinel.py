"""The lock behind Sentinel: as on one server, and through a failover."""

from __future__ import annotations

import pytest

from celery_rlock.core.lock import RLock
from celery_rlock.core.script import Script
from celery_rlock.errors import LockUnavailable
from tests.topologies.waiting import (
    SOON,
    WOKEN_WITHIN,
    Waiter,
    WaitingProcess,
    await_renewal,
    await_replication,
    await_waiters,
    hand_over,
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
