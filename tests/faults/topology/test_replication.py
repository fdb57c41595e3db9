"""A primary that dies after it has granted a lock and before its replica knows: the limit, and what helps.

The replica is paused and its link cut, so that nothing waits for it in a socket: what the primary is told
from then on dies with it.
"""

from __future__ import annotations

import threading

import pytest
from celery import Celery, states

from celery_rlock import LockedTask
from celery_rlock.core.lease import Lease
from celery_rlock.core.lock import RLock
from celery_rlock.core.name import Owner
from celery_rlock.core.replies import Busy, Taken
from celery_rlock.errors import LockUnavailable
from tests.support.processes import wait_until
from tests.topologies.waiting import SOON, await_renewal, has_lock, through_outages

LEASE = 15.0
SHORT_LEASE = 9.0
FIRST, SECOND = Owner("here", "1", "first"), Owner("there", "2", "second")


class BehindSentinel:
    """A primary and its replica, whichever they are, and what becomes of them."""

    def __init__(self, setup, name):
        self.setup, self.url = setup, setup.url
        self.primary, self.replica = setup.primary, setup.replica

    def await_promotion(self):
        return self.setup.await_failover(self.primary)


class InCluster:
    """The same for the part of a Cluster that has the key."""

    def __init__(self, cluster, name):
        self.setup, self.url, self._name = cluster, cluster.url, name
        self.primary = cluster.primary_of(name)
        self.replica = cluster.replica_of(self.primary)

    def await_promotion(self):
        return self.setup.await_failover(self.primary, self._name)


@pytest.fixture(params=["sentinel", "cluster"])
def pair(request, name):
    kind = {"sentinel": BehindSentinel, "cluster": InCluster}[request.param]
    return kind(request.getfixturevalue(request.param), name)


@pytest.fixture
def scripts(scripts_on, pair):
    return scripts_on(pair)


@pytest.fixture
def cut_off(pair):
    """From now on the replica learns nothing; it goes on when the test is over, or before."""

    def cut():
        pair.replica.pause()
        with pair.primary.client() as client:
            client.client_kill_filter(_type="slave")

    yield cut
    pair.replica.resume()


def promote(pair):
    """The primary dies, and the replica, which is there again, takes its place."""
    pair.primary.kill()
    pair.replica.resume()
    new = pair.await_promotion()
    assert new is pair.replica
    return new


class FencedStore:
    """Takes a write only under a token that is not older than the newest it has seen."""

    def __init__(self):
        self.token, self.value = 0, None

    def write(self, token, value):
        if token < self.token:
            return False
        self.token, self.value = token, value
        return True


class Second(threading.Thread):
    """Another owner, that takes the lock and keeps it."""

    def __init__(self, lock):
        super().__init__(daemon=True)
        self.token = None
        self._lock = lock
        self.start()
        self.join(SOON)

    def run(self):
        through_outages(lambda: self._lock.acquire(timeout=0))
        self.token = self._lock.token


def test_what_was_not_replicated_is_lost_and_a_store_can_tell_by_the_token(pair, scripts, cut_off, name):
    """Semantics 8 and 14: two owners, that is the limit; the first learns of it, and its token is too old."""
    lock = RLock(name, scripts=scripts, ttl=SHORT_LEASE)
    cut_off()
    assert lock.acquire(blocking=False)
    first = lock.token
    new = promote(pair)
    assert not has_lock(new, name)
    second = Second(RLock(name, scripts=scripts, ttl=LEASE)).token
    assert second > first
    store = FencedStore()
    assert store.write(second, "of the second")
    assert not store.write(first, "of the first")
    wait_until(lambda: lock.lost, timeout=SOON, what="the first owner to learn of it")


def test_with_lock_replicas_it_is_never_held(pair, scripts, cut_off, name):
    """Semantics 3 and 14: too few know of it, so it is given back and nobody runs."""
    cut_off()
    lease = Lease(scripts, scripts.name(name), FIRST)
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        lease.enter(LEASE, replicas=1)
    assert not lease.held
    assert not has_lock(pair.primary, name)
    new = promote(pair)
    assert not has_lock(new, name)
    taken = through_outages(lambda: scripts.acquire(scripts.name(name), SECOND, 1, LEASE, ""))
    assert isinstance(taken, Taken)
    assert scripts.release(scripts.name(name), SECOND, 0) == 1
    assert not has_lock(new, name)


def test_with_lock_replicas_what_is_held_is_held_after_a_failover(pair, scripts, name):
    """Semantics 1: the primary dies as soon as it has said yes."""
    lease = Lease(scripts, scripts.name(name), FIRST)
    assert lease.enter(LEASE, replicas=1) is None
    new = promote(pair)
    busy = through_outages(lambda: scripts.acquire(scripts.name(name), SECOND, 1, LEASE, ""))
    assert isinstance(busy, Busy)
    assert busy.holder == str(FIRST)
    await_renewal(new, name)
    assert lease.held
    through_outages(lambda: lease.leave(0))
    assert not has_lock(new, name)


def test_a_task_with_lock_replicas_does_not_run(pair, cut_off, name):
    """Semantics 5: for it the server is unavailable, and lock_unavailable says what that means."""
    app = Celery(set_as_current=False)
    app.conf.update(rlock_url=pair.url, rlock_unavailable="fail")
    runs = []

    @app.task(base=LockedTask, lock_key=name, lock_replicas=1, shared=False)
    def task():
        runs.append(1)

    assert task.apply().state == states.SUCCESS
    cut_off()
    result = task.apply()
    assert isinstance(result.result, LockUnavailable)
    assert runs == [1]
    assert not has_lock(pair.primary, name)
