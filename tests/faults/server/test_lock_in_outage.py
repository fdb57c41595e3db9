"""A lock without Celery, while its server is in trouble and afterwards."""

from __future__ import annotations

import time

import pytest
import redis

from celery_rlock import LockLost, LockNotHeld, LockUnavailable
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.replies import Busy, Release, Taken
from tests.faults import verbs
from tests.faults.server import lock_outages
from tests.faults.server.lock_outages import KEEPING_DATA, OUTAGES, PASSWORD, slow
from tests.support.fixtures import new_name
from tests.support.outages import cut_all_connections, flush_scripts, full, silent
from tests.support.processes import wait_until

TIMEOUT = 0.3
#: Longer than every outage of these tests.
LONG = 60.0
SHORT = 1.0
SOON = 20.0


@pytest.fixture(scope="module")
def server(kind):
    """A server for these tests only, because they stop, pause and fill it."""
    with lock_outages.server_with_password(kind) as server:
        yield server


@pytest.fixture
def rlock(server):
    """Makes locks of a key that no other test uses, over their own connections."""
    key = new_name()
    lock_server = RedisLockServer(connect(f"{server.url}?socket_timeout={TIMEOUT}&client_name={key}"))
    return lambda ttl=LONG, name="": ReentrantLock(key + name, lock_server=lock_server, ttl=ttl)


@pytest.mark.parametrize("before", ["connected", slow("new")])
@pytest.mark.parametrize("outage", OUTAGES, ids=str)
def test_an_acquire_raises_lock_unavailable_within_its_timeouts(outage, before, server, rlock):
    """Semantics 7: the error says why. A request that a frozen server executes later ends with its lease."""
    lock = rlock(ttl=SHORT)
    if before == "connected":
        with lock:
            pass
    with outage(server):
        start = time.monotonic()
        with pytest.raises(LockUnavailable, match=outage.error) as unavailable:
            lock.acquire(timeout=LONG)
        took = time.monotonic() - start
    # The acquire waits once for an answer, and its undoing once.
    assert took < 2 * TIMEOUT + 5
    assert PASSWORD not in str(unavailable.value)
    assert lock.acquire(timeout=SOON)
    assert lock.owned()
    lock.release()
    assert not lock.locked()


@pytest.mark.slow
@pytest.mark.parametrize("outage", [lock_outages.SILENT, lock_outages.PAUSED], ids=str)
def test_the_socket_timeout_decides_when_an_acquire_gives_up(outage, server):
    """A silent server costs what `socket_timeout` says, without hidden retries."""
    took = []
    for timeout in (0.1, 0.7):
        lock = ReentrantLock(
            "k", lock_server=RedisLockServer(connect(f"{server.url}?socket_timeout={timeout}")), ttl=SHORT
        )
        with outage(server):
            start = time.monotonic()
            with pytest.raises(LockUnavailable):
                lock.acquire(blocking=False)
            took.append(time.monotonic() - start)
    assert took[1] >= 0.7
    assert took[0] < took[1]


@pytest.mark.parametrize("outage", KEEPING_DATA, ids=str)
def test_a_lock_survives_an_outage_shorter_than_its_lease(outage, server, rlock):
    lock = rlock()
    with lock:
        token = lock.token
        with outage(server):
            assert lock.held
        lock.ensure()
        lock.extend(LONG)
        assert lock.owned()
        with lock:
            assert (lock.token, lock.depth) == (token, 2)
    assert not lock.locked()


@pytest.mark.parametrize("outage", OUTAGES, ids=str)
def test_a_release_in_an_outage_raises_nothing(outage, server, rlock):
    """Semantics 5: a lock that could not be released ends with its lease."""
    lock = rlock(ttl=SHORT)
    lock.acquire()
    with outage(server):
        lock.release()
        assert lock.depth == 0
    wait_until(lambda: not lock.locked(), timeout=SOON, what="the end of the lease")


def test_a_full_server_grants_renews_and_releases_locks(server, rlock):
    """Semantics 7: locks work without memory that a server at its `maxmemory` would refuse."""
    before, lock = rlock(ttl=1), rlock(ttl=1, name="-new")
    before.acquire()
    with full(server):
        with pytest.raises(redis.OutOfMemoryError):
            server.client().set("something", "else")
        lock.acquire()
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            before.ensure()
            lock.ensure()
            time.sleep(0.1)
        for each in (before, lock):
            each.extend(5)
            each.release()
            assert not each.locked()


def test_a_full_server_supports_re_entering_waiting_and_redeliveries(server):
    """Semantics 2, 10 and 12."""
    with full(server):
        lock_server = RedisLockServer(connect(server.url))
        for use in (verbs.enter_and_leave, verbs.wait_and_be_woken, verbs.queue_and_take_over):
            use(lock_server, lock_server.redis_keys(use.__name__))
        name, owner = lock_server.redis_keys("redelivered"), verbs.new_owner()
        assert isinstance(lock_server.acquire(name, owner, 1, LONG, ""), Taken)
        assert isinstance(lock_server.acquire(name, owner._replace(delivery="redelivery"), 1, LONG, ""), Busy)
        assert lock_server.redelivery(name, owner) == 1
        assert lock_server.release(name, owner, Release(ended=True)) == 1
        assert lock_server.redelivery(name, owner) == 2
        verbs.publish_again(lock_server, lock_server.redis_keys("published again"))


def test_after_a_restart_with_empty_memory_the_lock_is_lost_and_the_next_token_is_greater(server, rlock):
    """Semantics 8 and 14: the holder learns of the loss at its next renewal."""
    lock = rlock(ttl=3)
    lock.acquire()
    token = lock.token
    server.restart()
    wait_until(lambda: lock.lost, what="the holder to learn of the loss")
    with pytest.raises(LockLost, match="released or took it"):
        lock.ensure()
    with pytest.raises(LockNotHeld):
        lock.release()
    with lock:
        assert lock.held
        assert lock.token > token


def test_a_lock_is_lost_in_an_outage_longer_than_its_lease(server, rlock):
    """Semantics 7: the local clock decides, because the server does not answer."""
    lock = rlock(ttl=1)
    lock.acquire()
    with silent(server):
        wait_until(lambda: lock.lost, what="the lease to end")
        with pytest.raises(LockLost, match="lease ended"):
            lock.ensure()
    with pytest.raises(LockNotHeld):
        lock.release()
    with lock:
        assert lock.held


@pytest.mark.parametrize(
    "disturb", [slow(flush_scripts), cut_all_connections], ids=["flush scripts", "cut connections"]
)
def test_a_lock_survives_the_loss_of_scripts_and_connections(disturb, server, rlock):
    """Semantics 4: the client sends the scripts again and connects again."""
    lock = rlock(ttl=1.5)
    with lock:
        token = lock.token
        for _ in range(4):
            disturb(server)
            time.sleep(0.5)
            lock.ensure()
        disturb(server)
        with lock:
            disturb(server)
        disturb(server)
        lock.extend(5)
        disturb(server)
    assert not lock.locked()
    disturb(server)
    with lock:
        assert lock.token > token
