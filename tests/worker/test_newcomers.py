"""New messages that wait in a worker at once, because a task with their key already waits there."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from celery import states

from celery_rlock import LockBusy
from tests.support.fixtures import sender
from tests.support.fleet import Sent, UnackedMessage, deliveries
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, WAITING, await_state, revoke

QUEUE = "newcomers"
NEWCOMERS = 10
#: A few messages may come before the server has said that the first task waits.
MOST = 1.3 * (NEWCOMERS + 1)


@pytest.fixture(scope="module", autouse=True)
def worker(start_fleet):
    with start_fleet(1, queues=[QUEUE], concurrency=2) as [worker]:
        yield worker


@pytest.fixture(scope="module")
def send(publisher, backend):
    sends = sender(WAITING, publisher, backend)
    return lambda *args, **options: sends(*args, **{"queue": QUEUE, **options})


@pytest.fixture
def join(send, waiters):
    """Sends a task that waits for a key, then newcomers."""

    def join(name, how_many=NEWCOMERS, task="work", **options):
        first = send(task, name)
        waiters.await_count(name, 1)
        sent = [send(task, name, **options) for _ in range(how_many)]
        waiters.await_count(name, 1 + how_many)
        return first, sent

    return join


@pytest.fixture
def received(worker):
    """How often the worker received these tasks."""
    return lambda sent: sum(deliveries([worker])[task.id] for task in sent)


@pytest.mark.parametrize("task", ["work", "late", "rate_limited"])
def test_newcomers_are_delivered_once_and_run_in_order(
    send, join, name, hold, waiters, starts, received, task
):
    """Semantics 12: with early and late acknowledgement, and with a rate limit."""
    with hold(name):
        first, sent = join(name, task=task)
        in_line = [place.rpartition(":")[2] for place in waiters(name)]
    for one in (first, *sent):
        assert one.get(timeout=SOON) == one.id
    assert starts(name) == in_line
    assert received([first, *sent]) <= MOST
    assert not waiters(name)


def test_a_newcomer_knows_how_long_it_has_waited(worker, join, name, hold):
    with hold(name):
        _, sent = join(name)
    sent[-1].get(timeout=SOON)
    wait_until(
        lambda: f"{sent[-1].id}] acquired lock {name!r} after waiting for" in worker.log,
        timeout=SOON,
        what="the log",
    )


def test_revoked_and_expired_newcomers_never_run(publisher, worker, send, join, name, hold, waiters, starts):
    """Semantics 12: they pass their turns on."""
    with hold(name):
        first, gone = join(name)
        expires = [send("work", name, expires=2) for _ in range(3)]
        last = send("work", name)
        waiters.await_count(name, 1 + len(gone) + len(expires) + 1)
        revoke(publisher, [worker], *gone)
        for one in expires:
            await_state(one, states.REVOKED)
    assert last.get(timeout=SOON) == last.id
    for one in gone:
        await_state(one, states.REVOKED)
    assert starts(name) == [first.id, last.id]
    assert not waiters(name)


def test_what_decides_in_the_pool_is_not_kept(worker, send, join, name, hold, waiters, starts):
    """`lock_busy`, `lock_max_attempts` and options of one call hold, although the line is known."""
    with hold(name):
        _, sent = join(name, 2)
        skipped = send("work", name, headers={"rlock_options": {"busy": "skip"}})
        failed = send("work", name, headers={"rlock_options": {"busy": "fail"}})
        in_place = send("in_place_briefly", name)
        patient = send(
            "work",
            name,
            headers={"rlock_options": {"max_attempts": 1, "backoff": 60, "backoff_max": 60, "jitter": False}},
        )
        await_state(skipped, states.REVOKED)
        for task in (failed, in_place, patient):
            with pytest.raises(LockBusy):
                task.get(timeout=SOON)
        assert deliveries([worker])[patient.id] == 1
        elsewhere = send("work", name, headers={"rlock_options": {"key": f"{name}-elsewhere"}})
        assert elsewhere.get(timeout=SOON) == elsewhere.id
        by_key = send("work", f"{name}-any", headers={"rlock_options": {"key": name}})
        waiters.await_count(name, 4)
        queued = send("work", name, headers={"rlock_options": {"from": "publish"}})
        waiters.await_count(name, 5)
    for one in (*sent, by_key, queued):
        assert one.get(timeout=SOON) == one.id
    assert deliveries([worker])[queued.id] == 2


def test_a_key_of_the_users_code_is_made_in_the_pool(worker, join, name, hold, records, received):
    """Never on the worker's event loop, which it could stop."""
    with hold(name):
        first, sent = join(name, task="with_a_key_of_its_own_code")
    for one in (first, *sent):
        one.get(timeout=SOON)
    made = Counter(entry["thread"] for entry in records(f"made:{name}") if entry["pid"] == worker.pid)
    assert made
    assert "MainThread" not in made
    assert received(sent) == 2 * len(sent)


HOSTILE = [
    {"rlock_options": {"bogus": 1}},
    {"rlock_options": {"key": "{gone}"}},
    {"rlock_options": {"key": "{name:>700000000}"}},
    {"rlock_attempts": "x"},
    {"rlock_since": 1, "rlock_seal": "x"},
    {"rlock_waits_for": [1]},
    {"retries": "x"},
    {"replaced_task_nesting": []},
]


def test_messages_that_say_anything_disturb_nothing(worker, send, join, name, hold, starts, publisher):
    before = len(worker.log)
    with hold(name):
        first, sent = join(name, 2)
        for headers in HOSTILE:
            send("work", name, headers=headers)
        for args in ([[[]] * 500], [{"a": [name] * 2000}], [name] * 50, [10**200], []):
            publisher.send_task(f"{WAITING}.work", args, queue=QUEUE)
    for one in (first, *sent):
        assert one.get(timeout=SOON) == one.id
    after = send("work", name)
    assert after.get(timeout=SOON) == after.id
    assert starts(name)[:3] == [first.id, *(one.id for one in sent)]
    assert "ERROR/MainProcess" not in worker.log[before:]


def test_a_redelivered_newcomer_runs_once(publisher, join, name, hold, waiters, count):
    """Semantics 10: its worker may be cut off from the broker without noticing, and then both wait."""
    with hold(name):
        first, sent = join(name, 3, task="late")
        messages = [UnackedMessage(publisher, one.id) for one in sent]
        for message in messages:
            message.redeliver()
        waiters.await_count(name, 1 + 2 * len(sent))
    for one in (first, *sent):
        assert one.get(timeout=SOON) == one.id
    wait_until(lambda: not waiters(name), timeout=SOON, what="the redelivered messages to be dropped")
    wait_until(
        lambda: all(message.is_acknowledged(QUEUE) for message in messages),
        timeout=SOON,
        what="no message to be left",
    )
    assert count(name, "start") == {one.id: 1 for one in (first, *sent)}


def test_two_redelivered_messages_that_were_published_again_run_once(
    store, send, backend, name, queue, hold, waiters, count
):
    """Semantics 10: also with early acknowledgement, after a worker lost its broker in a busy attempt."""
    sent = send("work", name, queue=queue)
    message = json.loads(wait_until(lambda: store.lpop(queue), timeout=SOON, what="the message"))
    with hold(name):
        for number in (1, 2):
            properties = message["properties"]
            properties["delivery_tag"] = f"{name}-{number}"
            properties["delivery_info"]["redelivered"] = True
            properties["delivery_info"]["routing_key"] = QUEUE
            store.lpush(QUEUE, json.dumps(message))
            waiters.await_count(name, number)
    assert Sent(backend, sent.id).get(timeout=SOON) == sent.id
    wait_until(lambda: not waiters(name), timeout=SOON, what="the other one to be dropped")
    after = send("work", name)
    assert after.get(timeout=SOON) == after.id
    assert count(name, "start") == {sent.id: 1, after.id: 1}


def test_a_second_delivery_waits_for_the_run_of_the_first(worker, send, join, name, tell, waiters, count):
    """Semantics 10: it is dropped when that run ends, though it came as a newcomer and is not marked."""
    running = send("until_told", name, task_id=f"twice-{name}")
    wait_until(lambda: count(name, "start"), timeout=SOON, what="the run")
    first, _ = join(name, 1, task="until_told")
    send("until_told", name, task_id=running.id)
    waiters.await_count(name, 3)
    tell(name)
    await_state(first, states.SUCCESS)
    wait_until(lambda: not waiters(name), timeout=SOON, what="all to leave")
    wait_until(lambda: deliveries([worker])[running.id] == 3, timeout=SOON, what="the second delivery")
    await_state(running, states.SUCCESS)
    assert count(name, "start")[running.id] == 1
