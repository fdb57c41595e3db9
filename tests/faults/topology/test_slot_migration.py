"""A slot of a Cluster moves to another node while a lock in it is held.

While a slot moves, Redis answers TRYAGAIN to a command that needs several keys of the slot, unless all of
them exist on one node. Renewals need one key, so they continue through ASK. The other verbs wait until the
move ends, and raise LockUnavailable when it takes too long.
"""

from __future__ import annotations

import threading
import time

import pytest

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockUnavailable
from tests.faults.topology.waiters import (
    SOON,
    WOKEN_WITHIN,
    Waiter,
    await_waiters,
    hand_over,
    has_lock,
    waiters_of,
)
from tests.support.cluster import Migration

LONG_LEASE = 60.0
LEASE = 3.0
ROUNDS = 4
MOVE_TAKES = 0.6


@pytest.fixture
def lock_server(lock_server_on, cluster):
    return lock_server_on(cluster)


def redirections(node):
    """How often the node has redirected a client, by the kind of answer."""
    with node.client() as client:
        counts = client.info("errorstats")
    return {
        kind: counts.get(f"errorstat_{kind}", {"count": 0})["count"] for kind in ("ASK", "MOVED", "TRYAGAIN")
    }


class MoveEnd(threading.Thread):
    """Ends a move after a moment, in the background."""

    def __init__(self, migration):
        super().__init__(daemon=True)
        self._migration = migration
        self.start()

    def run(self):
        time.sleep(MOVE_TAKES)
        self._migration.move_keys()
        self._migration.end()


@pytest.mark.slow
def test_a_lease_is_renewed_while_its_slot_moves(lock_server, cluster, name):
    """Semantics 7: the lock is held through a move that takes longer than its lease."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LEASE)
    with lock:
        migration = Migration(cluster, name)
        before = redirections(migration.source)
        migration.begin()
        time.sleep(LEASE / 2)
        migration.move_keys()
        time.sleep(LEASE)
        lock.ensure()
        assert redirections(migration.source)["ASK"] > before["ASK"]
        migration.end()
        assert lock.owned()
        assert lock.acquire(blocking=False)
        lock.release()
    assert not lock.locked()
    assert not has_lock(migration.source, name)


def test_a_lock_that_has_moved_is_found_on_its_new_node(lock_server, cluster, name):
    """Semantics 3: the old node answers MOVED."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    with lock:
        token = lock.token
        migration = Migration(cluster, name)
        before = redirections(migration.source)
        migration.begin()
        migration.move_keys()
        migration.end()
        assert lock.acquire(blocking=False)
        assert (lock.depth, lock.token) == (2, token)
        assert redirections(migration.source)["MOVED"] > before["MOVED"]
        lock.release()
    assert not lock.locked()


@pytest.mark.slow
def test_a_lock_is_taken_entered_again_and_released_while_its_slot_moves(lock_server, cluster, name):
    """Semantics 5: each call waits for the end of the move."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    for verb in (lock.acquire, lock.acquire, lock.release, lock.release):
        migration = Migration(cluster, name)
        before = redirections(migration.source)
        migration.begin()
        moved = MoveEnd(migration)
        try:
            verb()
        finally:
            moved.join(SOON)
        seen = redirections(migration.source)
        assert seen["TRYAGAIN"] + seen["ASK"] > before["TRYAGAIN"] + before["ASK"]
    assert not lock.locked()


@pytest.mark.slow
def test_a_move_that_does_not_end_makes_the_lock_unavailable_and_keeps_it(lock_server, cluster, name):
    """Semantics 5 and 7: the caller gets an error, and the lock stays held."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    with lock:
        migration = Migration(cluster, name)
        migration.begin()
        try:
            with pytest.raises(LockUnavailable):
                lock.acquire(blocking=False)
        finally:
            migration.move_keys()
            migration.end()
        assert lock.depth == 1
        lock.ensure()
        assert lock.owned()
    assert not lock.locked()


def test_the_waiter_of_a_lock_that_moves_is_woken(lock_server, cluster, name):
    """Semantics 12: the new node publishes the wake-up, and the waiter gets it."""
    lock = ReentrantLock(name, lock_server=lock_server, ttl=LONG_LEASE)
    with lock:
        waiter = Waiter(lock)
        await_waiters(lambda: cluster.primary_of(name), name, 1)
        migration = Migration(cluster, name)
        migration.begin()
        migration.move_keys()
        migration.end()
        assert len(waiters_of(migration.target, name)) == 1
    waiter.join(SOON)
    assert waiter.at is not None
    hand_overs = [hand_over(lock, name, lambda: migration.target) for _ in range(ROUNDS)]
    assert min(hand_overs) < WOKEN_WITHIN
