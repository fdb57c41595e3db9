"""A primary dies after it has granted a lock and before its replica knows: a limit, and what helps.

The tests pause the replica and cut its link, so that no data waits for it in a socket. What the primary
learns after that is lost with it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery, states

from celery_rlock import LockedTask
from celery_rlock.core.execution import Execution
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Busy, Release, Taken
from tests.faults.topology.waiters import SOON, await_renewal, has_lock, through_outages
from tests.support.processes import wait_until

LEASE = 15.0
SHORT_LEASE = 9.0
FIRST, SECOND = Owner("here", "1", "first"), Owner("there", "2", "second")


class BehindSentinel:
    """The primary and its replica behind Sentinel at this moment."""

    def __init__(self, setup, name):
        self.setup, self.url = setup, setup.url
        self.primary, self.replica = setup.primary, setup.replica

    def await_promotion(self):
        return self.setup.await_failover(self.primary)


class InCluster:
    """The primary and its replica that have the key in a Cluster."""

    def __init__(self, cluster, name):
        self.setup, self.url, self._name = cluster, cluster.url, name
        self.primary = cluster.primary_of(name)
        self.replica = cluster.replica_of(self.primary)

    def await_promotion(self):
        return self.setup.await_failover(self.primary, self._name)


@pytest.fixture(params=["sentinel", pytest.param("cluster", marks=pytest.mark.slow)])
def pair(request, name):
    kind = {"sentinel": BehindSentinel, "cluster": InCluster}[request.param]
    return kind(request.getfixturevalue(request.param), name)


@pytest.fixture
def lock_server(lock_server_on, pair):
    return lock_server_on(pair)


@pytest.fixture
def cut_off(pair):
    """Cuts the replica off from its primary. It runs again when the test resumes it or ends."""

    def cut():
        pair.replica.pause()
        with pair.primary.client() as client:
            client.client_kill_filter(_type="slave")

    yield cut
    pair.replica.resume()


def promote(pair):
    """Kill the primary, resume the replica, and return the replica when it is the primary."""
    pair.primary.kill()
    pair.replica.resume()
    new = pair.await_promotion()
    assert new is pair.replica
    return new


class FencedStore:
    """A store that rejects a write whose token is smaller than one that it has seen."""

    def __init__(self):
        self.token, self.value = 0, None

    def write(self, token, value):
        if token < self.token:
            return False
        self.token, self.value = token, value
        return True


def acquire(lock):
    """Take the lock for the calling thread, and return its token."""
    through_outages(lambda: lock.acquire(timeout=0))
    return lock.token


@pytest.mark.slow
def test_a_lock_that_was_not_replicated_is_lost_and_its_token_is_too_old(pair, lock_server, cut_off, name):
    """Semantics 8 and 14: a second owner gets in. The first learns of it, and a store rejects its token."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=SHORT_LEASE)
    cut_off()
    assert lock.acquire(blocking=False)
    first = lock.token
    new = promote(pair)
    assert not has_lock(new, name)
    with ThreadPoolExecutor(1) as second_owner:
        again = ReentrantLock(name, lock_server=lock_server, ttl=LEASE)
        second = second_owner.submit(acquire, again).result(timeout=SOON)
        assert second > first
        store = FencedStore()
        assert store.write(second, "by the second")
        assert not store.write(first, "by the first")
        wait_until(lambda: lock.lost, timeout=SOON, what="the first owner to learn of it")
        second_owner.submit(again.release).result(timeout=SOON)


@pytest.mark.slow
def test_with_lock_replicas_a_lock_that_was_not_replicated_is_not_held(pair, lock_server, cut_off, name):
    """Semantics 3 and 14: too few replicas have the lock, so the caller gives it back and does not run."""
    cut_off()
    lease = Execution(FIRST).lease(lock_server, lock_server.redis_keys(name))
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        lease.enter(LEASE, replicas=1)
    assert not lease.held
    wait_until(lambda: not has_lock(pair.primary, name), what="the lock to be given back")
    new = promote(pair)
    assert not has_lock(new, name)
    taken = through_outages(lambda: lock_server.acquire(lock_server.redis_keys(name), SECOND, 1, LEASE, ""))
    assert isinstance(taken, Taken)
    assert lock_server.release(lock_server.redis_keys(name), SECOND, Release()) == 1
    assert not has_lock(new, name)


@pytest.mark.slow
def test_with_lock_replicas_a_lock_is_still_held_after_a_failover(pair, lock_server, name):
    """Semantics 1: the primary dies right after it has granted the lock."""
    lease = Execution(FIRST).lease(lock_server, lock_server.redis_keys(name))
    assert lease.enter(LEASE, replicas=1) is None
    new = promote(pair)
    busy = through_outages(lambda: lock_server.acquire(lock_server.redis_keys(name), SECOND, 1, LEASE, ""))
    assert isinstance(busy, Busy)
    assert busy.holder == str(FIRST)
    await_renewal(new, name)
    assert lease.held
    through_outages(lease.leave)
    assert not has_lock(new, name)


def test_a_task_with_lock_replicas_does_not_run_without_its_replica(pair, cut_off, name):
    """Semantics 5: the lock is unavailable, and `lock_unavailable` decides what happens."""
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
