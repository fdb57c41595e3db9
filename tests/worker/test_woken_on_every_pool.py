"""Waking, on every pool and with every broker."""

from __future__ import annotations

import time

import pytest

from celery_rlock.core.client import connect
from celery_rlock.core.execution import new_delivery
from celery_rlock.core.name import Owner
from celery_rlock.core.scripts import Scripts
from tests.support.processes import wait_until
from tests.waking.fleet import SOON, await_busy, deliveries, sender

LEASE = 1.0
POOLS = ["prefork", "threads", "gevent", "solo"]


@pytest.fixture(scope="module")
def send(each_broker, backend):
    return sender(each_broker, backend)


@pytest.fixture(scope="module", params=POOLS)
def worker(request, each_broker, start_fleet):
    """Its queue is its own: a worker of the pool before may have left a message behind."""
    queue = f"pool-{request.param}"
    options = {"pool": request.param, "concurrency": 2, "queues": [queue]}
    with start_fleet(1, broker=each_broker.conf.broker_url, **options) as [worker]:
        worker.queue = queue
        yield worker


@pytest.fixture
def renew(lock_server, name):
    """Somebody's lease, and the only one who renews it."""
    scripts = Scripts(connect(lock_server.url))
    lease = (scripts.name(name), Owner("dead", new_delivery(), "task"))
    scripts.acquire(*lease, depth=1, ttl=LEASE, task="")
    return lambda: scripts.renew([(*lease, LEASE)]) == [True]


def test_a_waiter_starts_soon_after_the_release(worker, send, name, hold, waiters, records):
    """Semantics 12: woken, not polled; a waiter whose backoff is a minute starts when the lock is free."""
    with hold(name):
        sent = send("work", name, queue=worker.queue)
        waiters.await_count(name, 1)
        assert not records(name)
    assert sent.get(timeout=SOON) == sent.id
    assert deliveries([worker])[sent.id] == 2
    assert not waiters(name)


def test_each_waiter_wakes_the_next(worker, send, name, hold, waiters, count):
    """Semantics 12: the release by a task wakes too."""
    with hold(name):
        sent = [send("work", name, queue=worker.queue) for _ in range(5)]
        waiters.await_count(name, 5)
    for task in sent:
        assert task.get(timeout=SOON) == task.id
    assert count(name, "end") == {task.id: 1 for task in sent}
    assert not waiters(name)


def test_a_task_that_waits_in_place_starts_soon_after_the_release(worker, send, name, hold, waiters):
    """Semantics 12: with `lock_wait` too, and it leaves no place behind."""
    with hold(name):
        sent = send("in_place", name, queue=worker.queue)
        waiters.await_count(name, 1)
    assert sent.get(timeout=SOON) == sent.id
    assert deliveries([worker])[sent.id] == 1
    assert not waiters(name)


def test_a_release_before_the_waiter_has_its_place_is_not_lost(worker, send, name, hold, waiters):
    """Semantics 12: who takes a place learns that the lock is free."""
    for turn in range(10):
        key = f"{name}-{turn}"
        with hold(key):
            sent = send("work", key, queue=worker.queue)
            await_busy(sent)
        assert sent.get(timeout=SOON) == sent.id
        assert not waiters(key)


def test_a_lease_that_ends_without_a_release_ends_the_waiting(worker, send, name, renew, waiters, records):
    """Semantics 7 and 12: the waiter looks when the lease should have ended, and again if it was renewed."""
    sent = send("work", name, queue=worker.queue)
    wait_until(lambda: renew() and waiters(name), timeout=SOON, what="it to wait")
    first_look = time.monotonic() + 1.5 * LEASE
    wait_until(lambda: renew() and time.monotonic() > first_look, timeout=SOON, what="its first look")
    assert not records(name)
    assert sent.get(timeout=SOON) == sent.id
    assert not waiters(name)
