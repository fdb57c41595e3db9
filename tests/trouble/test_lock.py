"""The lock without Celery, while its server is in trouble and afterwards."""

from __future__ import annotations

import time
import uuid

import pytest
import redis

from celery_rlock import LockLost, LockNotHeld, LockUnavailable
from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.replies import Busy, Taken
from celery_rlock.core.scripts import Scripts
from tests.support.processes import wait_until
from tests.support.servers import available_kinds
from tests.trouble import incidents, rights
from tests.trouble.incidents import INCIDENTS, PASSING, PASSWORD

TIMEOUT = 0.3
#: A lease that outlives what is done to the server in these tests.
LONG = 60.0
SHORT = 1.0
SOON = 20.0


@pytest.fixture(scope="module", params=available_kinds())
def server(request):
    """For these tests only: it is stopped, paused and filled."""
    with incidents.server_with_password(request.param) as server:
        yield server


@pytest.fixture
def rlock(server):
    """Makes locks of a key that no other test uses, over connections of their own."""
    key = f"key-{uuid.uuid4().hex[:8]}"
    scripts = Scripts(connect(f"{server.url}?socket_timeout={TIMEOUT}&client_name={key}"))
    return lambda ttl=LONG, name="": RLock(key + name, scripts=scripts, ttl=ttl)


@pytest.mark.parametrize("before", ["connected", "new"])
@pytest.mark.parametrize("incident", INCIDENTS, ids=str)
def test_an_acquire_is_unavailable_within_its_timeouts(incident, before, server, rlock):
    """Semantics 7: it says why. What the server has read but not yet done ends with its lease."""
    lock = rlock(ttl=SHORT)
    if before == "connected":
        with lock:
            pass
    with incident(server):
        start = time.monotonic()
        with pytest.raises(LockUnavailable, match=incident.said) as unavailable:
            lock.acquire(timeout=LONG)
        took = time.monotonic() - start
    # The acquire and its undoing wait for an answer once each.
    assert took < 2 * TIMEOUT + 5
    assert PASSWORD not in str(unavailable.value)
    assert lock.acquire(timeout=SOON)
    assert lock.owned()
    lock.release()
    assert not lock.locked()


@pytest.mark.parametrize("incident", [incidents.SILENT, incidents.PAUSED], ids=str)
def test_the_time_until_it_gives_up_follows_the_timeout(incident, server):
    """A silent server costs what `socket_timeout` says, and no retries that nobody asked for."""
    took = []
    for timeout in (0.1, 0.7):
        lock = RLock("k", scripts=Scripts(connect(f"{server.url}?socket_timeout={timeout}")), ttl=SHORT)
        with incident(server):
            start = time.monotonic()
            with pytest.raises(LockUnavailable):
                lock.acquire(blocking=False)
            took.append(time.monotonic() - start)
    assert took[1] >= 0.7
    assert took[0] < took[1]


@pytest.mark.parametrize("incident", PASSING, ids=str)
def test_a_lock_outlives_trouble_that_is_shorter_than_its_lease(incident, server, rlock):
    lock = rlock()
    with lock:
        token = lock.token
        with incident(server):
            assert lock.held
        lock.ensure()
        lock.extend(LONG)
        assert lock.owned()
        with lock:
            assert (lock.token, lock.depth) == (token, 2)
    assert not lock.locked()


@pytest.mark.parametrize("incident", INCIDENTS, ids=str)
def test_a_release_in_trouble_raises_nothing(incident, server, rlock):
    """Semantics 5: what the server could not be told ends with its lease."""
    lock = rlock(ttl=SHORT)
    lock.acquire()
    with incident(server):
        lock.release()
        assert lock.depth == 0
    wait_until(lambda: not lock.locked(), timeout=SOON, what="the end of the lease")


def test_a_full_server_still_gives_renews_and_frees_locks(server, rlock):
    """Semantics 7: no lock needs memory that a server at its `maxmemory` would refuse."""
    before, lock = rlock(ttl=1), rlock(ttl=1, name="-new")
    before.acquire()
    with incidents.full(server):
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


def test_a_full_server_still_does_all_that_the_lock_does(server):
    """Semantics 2, 10 and 12: enter again, tell copies, wait and be woken."""
    with incidents.full(server):
        scripts = Scripts(connect(server.url))
        for verb in (rights.enter_and_leave, rights.wait_and_be_told, rights.queue_and_take_over):
            verb(scripts, scripts.name(verb.__name__))
        name, owner = scripts.name("copied"), rights.owner()
        assert isinstance(scripts.acquire(name, owner, 1, LONG, ""), Taken)
        assert isinstance(scripts.acquire(name, owner._replace(delivery="copy"), 1, LONG, ""), Busy)
        assert scripts.copy(name, owner.task_id, 0) == 1
        assert scripts.finish(name, owner, 0) == 1
        assert scripts.copy(name, owner.task_id, 0) == 2


def test_a_server_that_lost_its_memory_has_lost_the_lock_and_the_next_one_is_a_new_one(server, rlock):
    """Semantics 8 and 14: the holder learns it at its next renewal, and the token grows all the same."""
    lock = rlock(ttl=3)
    lock.acquire()
    token = lock.token
    incidents.restart_empty(server)
    wait_until(lambda: lock.lost, what="the holder to learn it")
    with pytest.raises(LockLost, match="somebody else released or took it"):
        lock.ensure()
    with pytest.raises(LockNotHeld):
        lock.release()
    with lock:
        assert lock.held
        assert lock.token > token


def test_a_lock_is_lost_when_the_trouble_outlasts_its_lease(server, rlock):
    """Semantics 7: by the local clock, for nobody answers."""
    lock = rlock(ttl=1)
    lock.acquire()
    with incidents.silent(server):
        wait_until(lambda: lock.lost, what="the lease to end")
        with pytest.raises(LockLost, match="lease ended"):
            lock.ensure()
    with pytest.raises(LockNotHeld):
        lock.release()
    with lock:
        assert lock.held


@pytest.mark.parametrize(
    "incident",
    [incidents.flush_scripts, incidents.cut_all_connections],
    ids=lambda incident: incident.__name__,
)
def test_a_lock_does_not_notice(incident, server, rlock):
    """Semantics 4: scripts are sent again, connections made again."""
    lock = rlock(ttl=1.5)
    with lock:
        token = lock.token
        for _ in range(4):
            incident(server)
            time.sleep(0.5)
            lock.ensure()
        incident(server)
        with lock:
            incident(server)
        incident(server)
        lock.extend(5)
        incident(server)
    assert not lock.locked()
    incident(server)
    with lock:
        assert lock.token > token
