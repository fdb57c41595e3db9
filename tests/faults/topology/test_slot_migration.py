"""A lock whose slot moves to another node while it is held.

While a slot moves, Redis answers TRYAGAIN to whatever needs several keys of it that are not all in one place,
and a key that does not exist is in none. So renewals, which need one key, go on through ASK; the other verbs
wait for the move's end, and are unavailable when it takes too long.
"""

from __future__ import annotations

import threading
import time

import pytest

from celery_rlock.core.lock import RLock
from celery_rlock.errors import LockUnavailable
from tests.support.cluster import Migration
from tests.topologies.waiting import (
    SOON,
    WOKEN_WITHIN,
    Waiter,
    await_waiters,
    hand_over,
    has_lock,
    waiters_of,
)

LONG_LEASE = 60.0
LEASE = 3.0
ROUNDS = 4
MOVE_TAKES = 0.6


@pytest.fixture
def scripts(scripts_on, cluster):
    return scripts_on(cluster)


def asked(node):
    """How often it has sent somebody elsewhere, by the kind of answer."""
    with node.client() as client:
        counts = client.info("errorstats")
    return {
        kind: counts.get(f"errorstat_{kind}", {"count": 0})["count"] for kind in ("ASK", "MOVED", "TRYAGAIN")
    }


class Moved(threading.Thread):
    """The rest of a move, in a moment."""

    def __init__(self, migration):
        super().__init__(daemon=True)
        self._migration = migration
        self.start()

    def run(self):
        time.sleep(MOVE_TAKES)
        self._migration.move_keys()
        self._migration.end()


def test_a_lease_is_renewed_while_its_slot_moves(scripts, cluster, name):
    """Semantics 7: the hold outlives a move that takes longer than its lease."""
    lock = RLock(name, scripts=scripts, ttl=LEASE)
    with lock:
        migration = Migration(cluster, name)
        before = asked(migration.source)
        migration.begin()
        time.sleep(LEASE / 2)
        migration.move_keys()
        time.sleep(LEASE)
        lock.ensure()
        assert asked(migration.source)["ASK"] > before["ASK"]
        migration.end()
        assert lock.owned()
        assert lock.acquire(blocking=False)
        lock.release()
    assert not lock.locked()
    assert not has_lock(migration.source, name)


def test_a_lock_that_has_moved_is_found_where_it_is(scripts, cluster, name):
    """Semantics 3: MOVED."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
    with lock:
        token = lock.token
        migration = Migration(cluster, name)
        before = asked(migration.source)
        migration.begin()
        migration.move_keys()
        migration.end()
        assert lock.acquire(blocking=False)
        assert (lock.depth, lock.token) == (2, token)
        assert asked(migration.source)["MOVED"] > before["MOVED"]
        lock.release()
    assert not lock.locked()


def test_a_lock_is_taken_entered_again_and_released_while_its_slot_moves(scripts, cluster, name):
    """Semantics 5: each waits for the end of the move."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
    for verb in (lock.acquire, lock.acquire, lock.release, lock.release):
        migration = Migration(cluster, name)
        before = asked(migration.source)
        migration.begin()
        moved = Moved(migration)
        try:
            verb()
        finally:
            moved.join(SOON)
        seen = asked(migration.source)
        assert seen["TRYAGAIN"] + seen["ASK"] > before["TRYAGAIN"] + before["ASK"]
    assert not lock.locked()


def test_a_move_that_does_not_end_makes_the_lock_unavailable_and_loses_nothing(scripts, cluster, name):
    """Semantics 5 and 7."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
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


def test_who_waits_for_a_lock_that_moves_is_woken(scripts, cluster, name):
    """Semantics 12: the new node publishes, and is heard."""
    lock = RLock(name, scripts=scripts, ttl=LONG_LEASE)
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
