"""A holder that lost its lock is told, also when the loss shows only at the release."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rlock import LockedTask, LockNotHeld
from celery_rlock.signals import lock_acquired, lock_lost
from tests.support.processes import wait_until

#: So long that no renewal happens during a test.
TTL = 120


@pytest.fixture
def told():
    """The errors that the signal `lock_lost` brought."""
    errors = []

    def receive(error=None, **_):
        errors.append(error)

    lock_lost.connect(receive, weak=False)
    yield errors
    lock_lost.disconnect(receive)


@pytest.fixture
def successor(locks):
    """Takes the key "k" on a thread of its own, which lives as long as the test."""
    lock = locks(ttl=TTL)
    with ThreadPoolExecutor(1) as other:

        class Successor:
            @staticmethod
            def take():
                return other.submit(lock.acquire, timeout=10).result()

            @staticmethod
            def owns():
                return other.submit(lock.owned).result()

        yield Successor


def test_releasing_a_lock_that_is_gone(locks, client):
    """Point 13: Redis lost it, long before the end of the lease."""
    lock = locks(ttl=TTL)
    lock.acquire()
    client.flushall()
    with pytest.raises(LockNotHeld):
        lock.release()
    assert (lock.depth, lock.held) == (0, False)


def test_releasing_a_lock_that_another_took(locks, client, successor):
    """Point 13."""
    lock = locks(ttl=TTL)
    lock.acquire()
    client.flushall()
    assert successor.take()
    with pytest.raises(LockNotHeld):
        lock.release()
    assert successor.owns()


def test_leaving_an_inner_section_of_a_lock_that_is_gone(locks, client):
    """Point 13."""
    lock = locks(ttl=TTL)
    lock.acquire()
    lock.acquire()
    client.flushall()
    with pytest.raises(LockNotHeld):
        lock.release()
    assert not lock.held


def test_the_end_of_a_block_tells_it(locks, client):
    """Point 13."""
    with pytest.raises(LockNotHeld), locks(ttl=TTL):
        client.flushall()


@pytest.mark.parametrize("taken", [False, True], ids=["gone", "another's"])
@pytest.mark.parametrize("until", ["return", "postrun"])
def test_a_task_whose_run_ends_before_the_next_renewal(
    locks, client, successor, told, caplog, taken, until, request
):
    """Point 13: the signal and the log tell it."""

    @locks.app.task(base=LockedTask, lock_key="k", lock_ttl=TTL, lock_until=until, name=request.node.name)
    def task():
        client.flushall()
        return successor.take() if taken else True

    with caplog.at_level(logging.WARNING, "celery_rlock"):
        assert task.apply().get() is True
        wait_until(lambda: told, timeout=10, what="the signal lock_lost")
        assert [error.key for error in told] == ["k"]
        wait_until(lambda: "'k'" in caplog.text and "lost" in caplog.text, timeout=5, what="the log")
    if taken:
        assert successor.owns()


def test_a_tasks_own_callback_is_called(locks, client):
    """Point 13: the option `lock_lost`."""
    lost = []

    @locks.app.task(base=LockedTask, lock_key="k", lock_ttl=TTL, lock_lost=lambda *args: lost.append(args))
    def own_callback():
        client.flushall()

    own_callback()
    wait_until(lambda: lost, timeout=10, what="the callback")
    assert len(lost) == 1


def test_a_loss_between_acquire_and_run_is_told(locks, client, told):
    """Point 16: the lock is lost before the task watches it."""

    @locks.app.task(base=LockedTask, lock_key="k", lock_ttl=0.6)
    def task():
        time.sleep(1)

    def lose(lock=None, **_):
        client.flushall()
        wait_until(lambda: not lock.held, what="a renewal that finds the lock gone")

    lock_acquired.connect(lose, weak=False)
    try:
        task()
    finally:
        lock_acquired.disconnect(lose)
    wait_until(lambda: told, timeout=5, what="the signal lock_lost")


def test_a_lock_that_was_not_lost_tells_nothing(locks, told):
    @locks.app.task(base=LockedTask, lock_key="k", lock_ttl=TTL)
    def task():
        return "done"

    assert task() == "done"
    time.sleep(0.3)
    assert told == []
