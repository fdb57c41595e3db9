"""Semantics 4: a reply that is lost leaves no lock behind, and no depth that is wrong."""

from __future__ import annotations

import time

import pytest

from celery_rlock import LockUnavailable
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.lock_server import _ACQUIRE, _RELEASE, _RENEW
from tests.support.processes import wait_until

LOCK = "rlock:{k}"
CLOSED, SWALLOWED = "close", "swallow"


def calls(script):
    """Matches the commands that run this script."""
    return lambda command: command[0].upper() == b"EVALSHA" and command[1] == script.sha.encode()


@pytest.fixture
def lock(through_proxy):
    lock = ReentrantLock("k", lock_server=through_proxy, ttl=30)
    with lock:  # loads the scripts
        pass
    return lock


def depth_in_redis(client):
    return [value for field, value in client.hgetall(LOCK).items() if not field.startswith(b"@")]


def test_at_acquire_closed(lock, proxy, client):
    """Semantics 4: the repeated acquire finds its own lock."""
    rule = proxy.lose_reply(calls(_ACQUIRE), CLOSED)
    with lock:
        assert depth_in_redis(client) == [b"1"]
    assert rule.left == 0
    assert not client.exists(LOCK)


@pytest.mark.parametrize("times", [1, 2])
def test_at_acquire_without_any_answer(lock, proxy, client, times):
    """Semantics 4: the lock that was taken and never told of is given back."""
    proxy.lose_reply(calls(_ACQUIRE), SWALLOWED if times == 1 else CLOSED, times)
    with pytest.raises(LockUnavailable):
        lock.acquire()
    assert lock.depth == 0
    wait_until(lambda: not client.exists(LOCK), what="the lock to be free")


@pytest.mark.parametrize("how", [CLOSED, SWALLOWED])
def test_at_re_entry(lock, proxy, client, how):
    """Semantics 4: the outer section keeps the lock, whether the inner one got in or not."""
    with lock:
        proxy.lose_reply(calls(_ACQUIRE), how)
        if how == CLOSED:
            with lock:
                assert depth_in_redis(client) == [b"2"]
        else:
            with pytest.raises(LockUnavailable):
                lock.acquire()
        assert lock.depth == 1
        wait_until(lambda: depth_in_redis(client) == [b"1"], what="the depth to be right in Redis")
        assert lock.owned()
    assert not client.exists(LOCK)


@pytest.mark.parametrize("how", [CLOSED, SWALLOWED])
def test_at_an_inner_release(lock, proxy, client, how):
    """Semantics 4: an inner release that ran twice does not free the outer section."""
    with lock:
        lock.acquire()
        rule = proxy.lose_reply(calls(_RELEASE), how)
        lock.release()
        assert rule.left == 0
        assert lock.depth == 1
        assert lock.owned()
    assert not client.exists(LOCK)


@pytest.mark.parametrize("how", [CLOSED, SWALLOWED])
def test_at_the_outer_release(lock, proxy, client, how):
    """Semantics 4: gone while the local lease holds means that it succeeded before."""
    lock.acquire()
    rule = proxy.lose_reply(calls(_RELEASE), how)
    lock.release()
    assert rule.left == 0
    assert not client.exists(LOCK)


def test_at_renewal(through_proxy, proxy, client):
    """Semantics 4 and 7: a renewal without an answer is tried again before the lease ends."""
    with ReentrantLock("k", lock_server=through_proxy, ttl=2) as lock:
        rule = proxy.lose_reply(calls(_RENEW), CLOSED)
        wait_until(lambda: rule.left == 0, timeout=10, what="the renewal")
        time.sleep(2)
        assert lock.held
        assert lock.owned()
    assert not client.exists(LOCK)


def test_a_request_that_never_arrived(lock, proxy, client):
    proxy.drop_request(calls(_ACQUIRE))
    with lock:
        proxy.drop_request(calls(_RELEASE))
    assert not client.exists(LOCK)


def test_a_server_that_is_away_at_release_is_left_to_the_lease(through_proxy, proxy, client, caplog):
    """Semantics 5: a failing release never fails what is done."""
    lock = ReentrantLock("k", lock_server=through_proxy, ttl=0.5)
    with lock:
        proxy.refuse()
    assert "could not release lock 'k', it ends with its lease" in caplog.text
    wait_until(lambda: not client.exists(LOCK), what="the lease's end")
    assert lock.depth == 0
