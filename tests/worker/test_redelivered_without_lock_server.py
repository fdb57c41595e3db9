"""The lock server is away or silent for a moment, while a message is delivered twice or waits."""

from __future__ import annotations

import time

import pytest
from celery import states

from tests.support.daemon import ROOT
from tests.support.faults import script
from tests.support.fleet import Sent, UnackedMessage
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, await_log, await_state, lock

QUEUE = "redelivered-without-lock-server"
REDELIVERY = script(ROOT / "lua" / "redelivery.lua")


@pytest.fixture(scope="module", params=["prefork", "threads"])
def fleet(request, start_fleet, lock_proxy):
    """Two workers that reach the lock server through a proxy."""
    options = {"pool": request.param, "concurrency": 2, "queues": [QUEUE]}
    with start_fleet(2, conf={"rlock_url": lock_proxy.url}, **options) as fleet:
        yield fleet


@pytest.fixture
def publish(proj, backend):
    """Publishes a task of `proj` to this fleet."""

    def publish(task, *args, **kwargs):
        return Sent(backend, getattr(proj, task).apply_async(args, kwargs, queue=QUEUE).id)

    return publish


def test_a_finished_task_does_not_run_again_when_its_early_release_failed(
    fleet, publish, name, tell, publisher, locks, waiters, lock_server_away, starts
):
    """Semantics 10: the release that succeeds later tells the redelivery that its task has ended.

    A release of 0.1 that failed counted as done: when the lease ended, the redelivery ran.
    """
    result = publish("late_until_told", name, name)
    message = UnackedMessage(publisher, result.id)
    wait_until(lambda: starts(name), timeout=SOON, what="the run")
    message.redeliver()
    wait_until(lambda: locks.hexists(lock(name), "@redelivered"), timeout=SOON, what="the mark")
    waiters.await_count(name, 1)
    with lock_server_away():
        tell(name)
        await_log(fleet, f"could not release lock '{name}'")
        await_state(result, states.SUCCESS)
    wait_until(lambda: message.is_acknowledged(QUEUE), timeout=SOON, what="the end of the redelivery")
    assert starts(name) == [result.id]


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_task_whose_redelivery_check_timed_out_runs(
    fleet, publish, name, publisher, hold, waiters, lock_proxy, starts, redelivered
):
    """Semantics 10: the lock server stalls after a waiter took the lock. The waiter is published again."""
    with hold(name):
        result = publish("late", name)
        waiters.await_count(name, 1)
        message = UnackedMessage(publisher, result.id)
        if redelivered:
            message.redeliver()
            waiters.await_count(name, 2)
        stall = lock_proxy.lose_reply(REDELIVERY, how="swallow")
    assert result.get(timeout=2 * SOON)["id"] == result.id
    assert stall.left == 0
    wait_until(lambda: message.is_acknowledged(QUEUE), timeout=SOON, what="the end of all messages")
    assert starts(name) == [result.id]


@pytest.fixture(scope="module")
def hasty_fleet(start_fleet, lock_proxy):
    """A worker whose broker may redeliver a message after six seconds. After half of that, it is overdue."""
    visibility = {"visibility_timeout": 6, "unacked_restore_interval": 60}
    conf = {"rlock_url": lock_proxy.url, "broker_transport_options": visibility}
    with start_fleet(1, conf=conf, concurrency=2, queues=["overdue"]) as fleet:
        yield fleet


@pytest.mark.parametrize("until", ["return", "postrun"])
def test_an_overdue_run_tells_its_end_though_redis_did_not_answer_at_first(
    hasty_fleet, proj, backend, publisher, name, tell, lock_proxy, starts, until
):
    """Semantics 10: an overdue run expects a redelivery. If it cannot mark its lock, it marks it later.

    The explorer of tests/interleavings found it: without the mark, the redelivered message ran once more.
    """
    sent = proj.late_until_told.apply_async((name, name), queue="overdue", lock_until=until)
    result, message = Sent(backend, sent.id), UnackedMessage(publisher, sent.id)
    wait_until(lambda: starts(name), timeout=SOON, what="the run")
    time.sleep(3.1)
    if until == "return":
        lock_proxy.lose_reply(REDELIVERY, how="swallow")
    tell(name)
    await_state(result, states.SUCCESS)
    message.redeliver()
    wait_until(lambda: message.is_acknowledged("overdue"), timeout=SOON, what="the end of the redelivery")
    assert starts(name) == [result.id]
