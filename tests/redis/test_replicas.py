"""`lock_replicas`: a lock counts when so many replicas have it."""

from __future__ import annotations

import pytest

from celery_rlock.core.execution import current_execution
from celery_rlock.errors import ConfigurationError, LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.conftest import DEFAULT_KIND
from tests.support.processes import wait_until
from tests.support.servers import Server


@pytest.fixture(scope="module")
def pair():
    """A primary and its replica."""
    with (
        Server.start(DEFAULT_KIND, repl_diskless_sync_delay=0) as primary,
        Server.start(DEFAULT_KIND, replicaof=("127.0.0.1", primary.port)) as replica,
    ):
        client = replica.client()
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", timeout=30)
        yield primary, replica


@pytest.fixture
def lease(pair):
    """This thread's lease of a key, and a way to see it."""
    primary, _ = pair
    primary.client().flushall()
    lock_server = RedisLockServer(connect(primary.url))
    lease = current_execution().lease(lock_server, lock_server.redis_keys("k"))
    yield lease
    lease.leave(completely=True)


def await_nothing_left(primary, lease):
    """A background thread undoes the acquire."""
    client = primary.client()
    wait_until(lambda: not client.exists(lease.redis_keys.lock), timeout=20, what="a free lock")


def test_a_lock_that_the_replica_has_is_held(lease, pair):
    _, replica = pair
    assert lease.enter(30, 1) is None
    assert lease.held
    assert replica.client().exists(lease.redis_keys.lock)


def test_too_few_replicas_are_unavailable_and_nothing_is_left(lease, pair):
    """Never held: neither by the caller, nor in the way of a later one."""
    primary, _ = pair
    with pytest.raises(LockUnavailable, match=r"1 of 2 replicas had it in time \(lock_replicas\)"):
        lease.enter(30, 2)
    assert (lease.held, lease.depth) == (False, 0)
    await_nothing_left(primary, lease)


def test_a_replica_that_does_not_answer_does_not_count(lease, pair):
    primary, replica = pair
    replica.pause()
    try:
        with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
            lease.enter(30, 1)
    finally:
        replica.resume()
    await_nothing_left(primary, lease)


def test_a_busy_lock_is_busy_whatever_the_replicas_have(lease, pair):
    primary, _ = pair
    primary.client().hset(lease.redis_keys.lock, "other:task", 1)
    assert lease.enter(30, 5).holder.endswith("other:task")


def test_to_enter_again_asks_no_replica(lease, pair):
    _, replica = pair
    lease.enter(30, 1)
    replica.pause()
    try:
        assert lease.enter(30, 1) is None
        assert lease.depth == 2
    finally:
        replica.resume()


def test_the_scripts_are_loaded_when_the_server_lost_them(lease, pair):
    primary, _ = pair
    primary.client().script_flush()
    assert lease.enter(30, 1) is None


def test_a_server_that_does_not_know_wait_is_a_clear_error():
    """Semantics 16."""
    with Server.start(DEFAULT_KIND, rename_command=("WAIT", "")) as server:
        lock_server = RedisLockServer(connect(server.url))
        lease = current_execution().lease(lock_server, lock_server.redis_keys("k"))
        with pytest.raises(ConfigurationError, match=r"does not know WAIT.*: set lock_replicas to 0"):
            lease.enter(30, 1)
        wait_until(lambda: not server.client().exists(lease.redis_keys.lock), what="the lock to be free")
