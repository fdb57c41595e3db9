"""A waiter is woken on every pool and with every broker."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.support.fixtures import sender
from tests.support.fleet import deliveries
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, WAITING, await_busy, lock

LEASE = 1.0
#: RabbitMQ on the prefork pool shows the broker's part; on the other pools it is repetition.
SETUPS = [
    *(("redis", pool) for pool in ("prefork", "threads", "gevent", "solo")),
    ("rabbitmq", "prefork"),
    *(pytest.param("rabbitmq", pool, marks=pytest.mark.slow) for pool in ("threads", "gevent", "solo")),
]
pytestmark = pytest.mark.parametrize(("broker", "worker"), SETUPS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def worker(request, broker, start_fleet):
    """One worker of the pool. Its queue is named after the pool, so that no other worker takes from it."""
    options = {"pool": request.param, "concurrency": 2, "queues": [queue_of(request.param)]}
    with start_fleet(1, env={"RLOCK_TEST_BROKER": broker.conf.broker_url}, **options) as [worker]:
        worker.pool = request.param
        yield worker


def queue_of(pool):
    return f"woken-{pool}"


@pytest.fixture
def send(worker, broker, backend):
    """Publishes a task of `proj.waiting` for this worker."""
    return partial(sender(WAITING, broker, backend), queue=queue_of(worker.pool))


@pytest.fixture
def renew(locks, name):
    """Renews the lease of a lock that no process will release; False when the lease has ended."""
    locks.hset(lock(name), mapping={"nonce:task": 1, "@worker": "dead@host", "@token": 1, "@task": ""})
    lease = lambda: locks.pexpire(lock(name), int(LEASE * 1000))  # noqa: E731
    lease()
    return lease


def test_a_waiter_starts_soon_after_the_release(worker, send, name, hold, waiters, records):
    """Semantics 12: woken, not polled; its backoff is a minute, and it starts when the lock is free."""
    with hold(name):
        sent = send("work", name)
        waiters.await_count(name, 1)
        assert not records(name)
    assert sent.get(timeout=SOON) == sent.id
    assert deliveries([worker])[sent.id] == 2
    assert not waiters(name)


def test_each_waiter_wakes_the_next(worker, send, name, hold, waiters, count):
    """Semantics 12: the release by a task wakes the next one."""
    with hold(name):
        sent = [send("work", name) for _ in range(5)]
        waiters.await_count(name, 5)
    for task in sent:
        assert task.get(timeout=SOON) == task.id
    assert count(name, "end") == {task.id: 1 for task in sent}
    assert not waiters(name)


def test_a_task_that_waits_in_place_starts_soon_after_the_release(worker, send, name, hold, waiters):
    """Semantics 12: with `lock_wait`; it leaves no place behind."""
    with hold(name):
        sent = send("in_place", name)
        waiters.await_count(name, 1)
    assert sent.get(timeout=SOON) == sent.id
    assert deliveries([worker])[sent.id] == 1
    assert not waiters(name)


def test_a_release_before_the_waiter_has_its_place_is_not_lost(worker, send, name, hold, waiters):
    """Semantics 12: a waiter that takes its place learns that the lock is free."""
    for turn in range(5):
        key = f"{name}-{turn}"
        with hold(key):
            sent = send("work", key)
            await_busy(sent)
        assert sent.get(timeout=SOON) == sent.id
        assert not waiters(key)


def test_a_lease_that_ends_without_a_release_ends_the_waiting(worker, send, name, renew, waiters, records):
    """Semantics 7 and 12: the waiter looks when the lease should have ended, and again if it was renewed."""
    sent = send("work", name)
    wait_until(lambda: renew() and waiters(name), timeout=SOON, what="it to wait")
    first_look = time.monotonic() + 1.5 * LEASE
    wait_until(lambda: renew() and time.monotonic() > first_look, timeout=SOON, what="its first look")
    assert not records(name)
    assert sent.get(timeout=SOON) == sent.id
    assert not waiters(name)
