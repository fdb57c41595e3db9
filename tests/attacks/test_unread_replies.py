"""A signal between a request and its reply: the next request on that connection would read the reply."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
import redis
from redis.cluster import RedisCluster
from redis.connection import AbstractConnection

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockNotHeld
from celery_rlock.server.client import connect
from celery_rlock.server.cluster import Client
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from tests.attacks.attack import PATIENCE
from tests.support.cluster import Cluster
from tests.support.processes import wait_until
from tests.support.sentinel import SentinelSetup
from tests.support.servers import DEFAULT_KIND, Server

TTL = 120
#: Below the time after which a Cluster or a sentinel gives a server up.
PAUSED = 0.2


class Interrupted(Exception):
    """Raised by the signal handler, as a soft time limit is."""


class Traced(redis.Redis):
    def execute_command(self, *args, **options):
        return super().execute_command(*args, **options)


@pytest.fixture(scope="module")
def single():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def sentinel():
    with SentinelSetup.start(DEFAULT_KIND) as setup:
        yield setup


@pytest.fixture(scope="module")
def cluster():
    with Cluster.start(DEFAULT_KIND, replicas=0) as cluster:
        yield cluster


class Kind(NamedTuple):
    """A fresh client, and one of the servers that it uses."""

    client: Client
    server: Server
    key: Callable[[str], str]  #: a key on that server


@pytest.fixture(params=["url", "own", "own, traced", "sentinel", "cluster", "own cluster"])
def kind(request):
    if "cluster" in request.param:
        cluster = request.getfixturevalue("cluster")
        host, port = cluster.hosts[0].split(":")
        client = RedisCluster(host, int(port)) if "own" in request.param else connect(cluster.url)
        return Kind(client, cluster.nodes[0], lambda stem: cluster.key_on(cluster.nodes[0], stem))
    if request.param == "sentinel":
        sentinel = request.getfixturevalue("sentinel")
        return Kind(connect(sentinel.url), sentinel.primary, str)
    server = request.getfixturevalue("single")
    if request.param == "url":
        return Kind(connect(server.url), server, str)
    return Kind((Traced if "traced" in request.param else redis.Redis)(port=server.port), server, str)


@contextmanager
def a_signal_after_sending(monkeypatch):
    """Inside the block, a signal strikes this thread when it has sent a request, and has read no reply."""
    send, strikes = AbstractConnection.send_packed_command, {threading.get_ident()}

    def interrupted(self, *args, **options):
        send(self, *args, **options)
        if threading.get_ident() in strikes:
            strikes.clear()
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", interrupted)
        with pytest.raises(Interrupted):
            yield


VERBS = {
    "acquire": lambda lock: lock.acquire(blocking=False),
    "re-enter": lambda lock: lock.acquire(),
    "extend": lambda lock: lock.extend(TTL),
    "release": lambda lock: lock.release(),
    "locked": lambda lock: lock.locked(),
    "owned": lambda lock: lock.owned(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_reply_that_was_not_read_answers_no_other_request(kind, monkeypatch, verb):
    """Point 4: an acquire must not say yes while another execution holds the key."""
    lock_server = RedisLockServer(kind.client, prefix=f"rlock:{verb}:{id(kind)}:")
    lock, held, fresh = (
        ReentrantLock(kind.key(stem), lock_server=lock_server, ttl=TTL) for stem in ("k", "held", "fresh")
    )
    with lock:  # the scripts
        lock.extend()
    lock_server.acquire(held._redis_keys, Owner("w", "1", "another"), 1, TTL, "t", attempt="1")
    if verb != "acquire":
        lock.acquire()
    kind.server.pause()
    threading.Timer(PAUSED, kind.server.resume).start()
    with a_signal_after_sending(monkeypatch):
        VERBS[verb](lock)
    assert held.acquire(blocking=False) is False
    assert fresh.acquire(blocking=False) is True
    assert fresh.owned()
    fresh.release()
    while lock.depth:
        with suppress(LockNotHeld):
            lock.release()
    wait_until(lambda: not lock.locked(), timeout=PATIENCE, what="the lock to be free")


@pytest.mark.parametrize("method", ["register", "unregister"])
def test_a_signal_while_it_subscribes_to_the_sentinels_breaks_no_later_request(sentinel, monkeypatch, method):
    """Point 4: each sentinel is heard in the end, and no half-made subscription is in the way."""
    monkeypatch.setattr("celery_rlock.server.sentinel._ASK_LATER", 0.0)
    client = connect(f"{sentinel.url}&client_name={method}")
    if method == "unregister":
        client.ping()
        for subscription in client._news._subscriptions.values():
            subscription.connection._sock.shutdown(socket.SHUT_RDWR)
    done = getattr(selectors.DefaultSelector, method)

    def interrupted(self, *args):
        done(self, *args)
        if strikes:
            raise strikes.pop()

    strikes = [Interrupted()]
    monkeypatch.setattr(selectors.DefaultSelector, method, interrupted)
    with suppress(Interrupted):
        for _ in range(5):
            client._ask_at = 0.0
            client.ping()
    assert not strikes
    for _ in range(10):
        client._ask_at = 0.0
        assert client.ping()
    news = client._news
    assert len(news._subscriptions) == len(sentinel.sentinels)
    assert {key.data for key in news._readable.get_map().values()} == set(news._subscriptions)
