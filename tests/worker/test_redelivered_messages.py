"""Deliveries of one message know of each other; a retry or a replacement of the task is another message."""

from __future__ import annotations

import json
import os
import signal

import pytest
from celery import states

from tests.support.daemon import ROOT
from tests.support.faults import script
from tests.support.fleet import Sent, UnackedMessage, deliveries, kill
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, await_state, lock

REDELIVERIES = 150
IS_ANNOUNCEMENT, IS_RELEASE = (script(ROOT / "lua" / f"{name}.lua") for name in ("redelivery", "release"))

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.fixture
def left_behind(locks, name):
    """What Redis still has of a key, beside its last token."""

    def keys():
        found = {key.decode() for key in locks.scan_iter(f"{lock(name)}*")}
        return found - {f"{lock(name)}:token"}

    return keys


@pytest.mark.parametrize("task", ["replacing", "retrying_while_held"])
def test_a_successor_that_comes_while_its_predecessor_has_the_lock_runs(
    proj, name, tell, waiters, starts, left_behind, task
):
    """Semantics 10: `self.replace()` and `self.retry()` keep the task's id, and always run."""
    result = getattr(proj, task).delay(name, name)
    waiters.await_count(name, 1)
    tell(name)
    assert result.get(timeout=SOON)["id"] == result.id
    assert starts(name) == [result.id] * 2
    wait_until(lambda: not left_behind(), timeout=SOON, what="no trace of the runs")


@pytest.fixture
def await_mark(locks, name):
    """Returns when the run that holds the key knows that its message was redelivered."""

    def wait():
        wait_until(lambda: locks.hexists(lock(name), "@redelivered"), timeout=SOON, what="the mark")

    return wait


def test_a_redelivered_predecessor_does_not_drop_its_replacement(
    proj, name, tell, publisher, await_mark, waiters, starts
):
    """Semantics 10: the end of the first message says nothing about the message that replaced it."""
    result = proj.replacing.delay(name, name)
    message = UnackedMessage(publisher, result.id)
    waiters.await_count(name, 1)
    message.redeliver()
    await_mark()
    tell(name)
    assert result.get(timeout=SOON)["id"] == result.id
    wait_until(message.is_acknowledged, timeout=SOON, what="the end of all messages")
    assert starts(name) == [result.id] * 2


def test_tasks_that_waited_leave_nothing_behind(proj, name, hold, waiters, left_behind, spans):
    """Semantics 10: a waiter was published again, but its first message is acknowledged."""
    with hold(name):
        results = [proj.late.delay(name) for _ in range(10)]
        waiters.await_count(name, len(results))
    for result in results:
        result.get(timeout=SOON)
    assert len(spans(name)) == len(results)
    wait_until(lambda: not left_behind(), timeout=SOON, what="no trace of the runs")


@pytest.mark.parametrize("lock_busy", ["retry", "skip", "fail"])
def test_a_redelivered_message_keeps_the_state_of_its_failed_task(
    proj, name, tell, publisher, backend, await_mark, hold, lock_busy
):
    """Semantics 10: it finds the lock held by another owner, after its own task has ended."""
    published = proj.late_until_told.apply_async((name, name), {"fails": True}, lock_busy=lock_busy)
    result = Sent(backend, published.id)
    message = UnackedMessage(publisher, result.id)
    message.redeliver()
    await_mark()
    tell(name)
    await_state(result, states.FAILURE)
    wait_until(message.is_acknowledged, timeout=SOON, what="the end of the first redelivery")
    with hold(name):
        message.redeliver()
        wait_until(message.is_acknowledged, timeout=SOON, what="the end of the second redelivery")
    with pytest.raises(ValueError, match=name):
        result.get(timeout=SOON)


def test_a_waiter_whose_worker_died_before_it_acknowledged_runs_once(
    doomed, start_fleet, send, queue, name, tell, publisher, store, hold, waiters, records, starts
):
    """Semantics 10: the worker has published the task again. Its first message comes back after the run."""
    held = hold(name)
    held.acquire()
    result = send("late_and_slow_to_wait", name, queue=queue)
    wait_until(lambda: records(f"asked:{name}"), timeout=SOON, what="the busy attempt")
    message = UnackedMessage(publisher, result.id)
    os.kill(doomed.pid, signal.SIGSTOP)  # the parent process, which acknowledges
    tell(name)
    wait_until(lambda: store.llen(queue), timeout=SOON, what="the task to be published again")
    kill(doomed)
    with start_fleet(1, queues=[queue]):
        waiters.await_count(name, 1)
        held.release()
        assert result.get(timeout=SOON) == result.id
        message.redeliver()
        wait_until(lambda: message.is_acknowledged(queue), timeout=SOON, what="the end of the redelivery")
    assert starts(name) == [result.id]


def test_a_redelivered_message_of_a_waiting_task_runs_once(proj, name, publisher, hold, waiters, starts):
    """Semantics 10: both messages wait, either may run first, and its run tells the other that it ended."""
    keys = [f"{name}-{number}" for number in range(6)]
    for key in keys:
        with hold(key):
            result = proj.late.delay(key)
            waiters.await_count(key, 1)
            message = UnackedMessage(publisher, result.id)
            message.redeliver()
            waiters.await_count(key, 2)
        wait_until(message.is_acknowledged, timeout=SOON, what="the end of both messages")
        assert starts(key) == [result.id]


@pytest.fixture
def redelivered(publisher, store, queue):
    """Puts many messages into the test's queue that the broker has delivered before, for later."""

    def put(task, count):
        prepared = f"{queue}-prepared"
        for number in range(count):
            publisher.send_task(task, (f"{queue}-{number}",), queue=prepared, countdown=3600)
        for raw in store.lrange(prepared, 0, -1):
            message = json.loads(raw)
            message["properties"]["delivery_info"]["redelivered"] = True
            store.lpush(queue, json.dumps(message))
        store.delete(prepared)

    return put


def test_a_dead_child_frees_its_lock_before_many_redeliveries_are_announced(
    start_fleet, lock_proxy, proj, name, queue, redelivered, records, await_free
):
    """Semantics 6: the parent process has many other things to tell the lock server."""

    def announced():
        return sum(map(IS_ANNOUNCEMENT, list(lock_proxy.seen)))

    with start_fleet(1, queues=[queue], conf={"rlock_url": lock_proxy.url}) as workers:
        proj.with_slow_key.apply_async((name,), queue=queue)
        pid = wait_until(lambda: records(name), timeout=SOON, what="the run")[0]["pid"]
        redelivered(proj.with_slow_key.name, REDELIVERIES)
        wait_until(
            lambda: deliveries(workers).total() > REDELIVERIES, timeout=SOON, what="all to be received"
        )
        before = announced()
        os.kill(pid, signal.SIGKILL)
        await_free(name)
        wait_until(
            lambda: announced() >= REDELIVERIES, timeout=2 * SOON, what="all redeliveries to be announced"
        )
    commands = list(lock_proxy.seen)
    released = next(
        number
        for number, command in enumerate(commands)
        if IS_RELEASE(command) and lock(name).encode() in command
    )
    assert sum(map(IS_ANNOUNCEMENT, commands[released:])) > (REDELIVERIES - before) / 3
