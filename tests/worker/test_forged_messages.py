"""Messages from a program that may write to the broker, with our headers as it likes them."""

from __future__ import annotations

import re

import pytest
from celery import states

from celery_rlock import ConfigurationError
from tests.support import neighbours
from tests.support.fixtures import new_name, sender
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, WAITING, revoke

QUEUE = "forged"
UNIQUE = "tests.worker.proj.unique"
TRAPPED = "tests.worker.proj.trapped"

WRONG = [
    {"rlock_options": {"bogus": 1}},
    {"rlock_options": [1]},
    {"rlock_options": {"key": "account:{gone}"}},
    {"rlock_options": {"key": "{name:>700000000}"}},
    {"rlock_options": {"hold_at_least": 1e9}},
    {"rlock_attempts": "x"},
    {"rlock_attempts": [1]},
    {"rlock_attempts": float("inf")},
    {"rlock_attempts": float("nan")},
    {"rlock_attempts": -1},
    {"rlock_attempts": 1, "rlock_since": "x"},
    {"rlock_attempts": 1, "rlock_waits_for": [1]},
    {"rlock_attempts": 1, "rlock_options": {"key": "account:{gone}"}},
    {"headers": {"rlock_attempts": "x"}},
]


@pytest.fixture(scope="module")
def worker(start_fleet):
    """A worker of its own, so that a message which stops it stops no other test."""
    with start_fleet(1, queues=[QUEUE], concurrency=2) as [worker]:
        yield worker


@pytest.fixture
def forge(worker, publisher, backend):
    """Publishes a task of a module with these headers, past `LockedTask.apply_async`."""
    return lambda module, task, headers, name=None, **options: sender(module, publisher, backend)(
        task, name or new_name(), queue=QUEUE, headers=headers, **options
    )


@pytest.fixture(autouse=True)
def the_worker_goes_on(worker, forge):
    """After each test the worker still runs tasks, and its parent process has seen no error."""
    yield
    assert forge(WAITING, "work", {}).get(timeout=SOON)
    assert worker.running
    assert not re.findall(r".*(?:ERROR|CRITICAL)/MainProcess.*", worker.log)


@pytest.mark.parametrize("when", [{}, {"countdown": 0.2}], ids=["now", "scheduled"])
@pytest.mark.parametrize(("module", "task"), [(WAITING, "work"), (WAITING, "late"), (UNIQUE, "once")])
def test_a_message_with_wrong_headers_fails_its_task_and_nothing_else(forge, store, module, task, when):
    """Semantics 16."""
    sent = [forge(module, task, headers, **when) for headers in WRONG]
    for headers, one in zip(WRONG, sent, strict=True):
        with pytest.raises(ConfigurationError, match="lock_"):
            print(headers, one.get(timeout=SOON))  # shown if no error comes

    def are_acknowledged():
        unacked = b"".join(store.hvals("unacked"))  # other tests have messages there too
        return not any(one.id.encode() in unacked for one in sent)

    wait_until(are_acknowledged, timeout=SOON, what="all messages to be acknowledged")


@pytest.mark.parametrize("task", ["work", "late"])
def test_a_wrong_message_that_does_not_run_stops_nothing(publisher, forge, worker, task):
    """Expired, or revoked while it is scheduled; also `celery inspect locks` answers."""
    revoked = [forge(WAITING, task, headers, countdown=3600) for headers in WRONG]
    # A quick worker receives a message before its millisecond is over. So it has expired when it is due.
    expired = [forge(WAITING, task, headers, expires=0.001, countdown=0.1) for headers in WRONG]
    for one in expired:
        wait_until(lambda one=one: one.state == states.REVOKED, timeout=SOON, what="the message to expire")
    assert publisher.control.broadcast("locks", destination=[worker.nodename], reply=True, timeout=5, limit=1)
    revoke(publisher, [worker], *revoked)


@pytest.fixture
def untouched(locks):
    """Other programs have keys on the lock server. After the test they are as they were."""
    neighbours.move_in(locks)
    before = neighbours.belongings(locks)
    yield
    assert neighbours.belongings(locks) == before


NAMES = ["leaderboard", "userhash", "text", "list", "rlock", "", "rlock:{another}", "rlock:{", "a" * 1000]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("waits_for", NAMES, ids=lambda name: name[:20] or "empty")
def test_a_message_names_no_key_but_its_tasks_own(forge, locks, waits_for):
    """Its waiter stands in the line of its own key, whatever lock it says that it waits for."""
    sent = [
        forge(WAITING, task, {"rlock_attempts": 1, "rlock_waits_for": waits_for}, countdown=1)
        for task in ("work", "late")
    ]
    for one in sent:
        assert one.get(timeout=SOON) == one.id
    assert not locks.exists("rlock:{another}:waiters", "rlock:{:waiters")


@pytest.mark.usefixtures("untouched")
def test_a_forged_wake_up_names_no_key_but_a_waiters_own(worker, send, name, hold, waiters, locks):
    """A program that may publish on our channels wakes our waiters, and reaches nothing else."""
    with hold(name):
        sent = send("work", name, queue=QUEUE)
        waiters.await_count(name, 1)
        listener, _, rest = waiters(name)[0].partition(":")
        channel = f"rlock:wake:{listener}"
        for other in NAMES:
            for waiter in (f"{listener}:0:x", f"{listener}:{rest}", "x", ""):
                for what in ("turn", "next", "shout"):
                    assert locks.publish(channel, f"{what} 1.{len(other)} {other} {waiter}") == 1
        for junk in (b"", b"turn", b"turn ", b"turn 1 ", b"\xff\xfe turn", b"turn " * 100_000):
            locks.publish(channel, junk)
    assert sent.get(timeout=SOON) == sent.id


FORGED = ["f0f0f0f0", ["f0f0f0f0", 1.0, True], {"name": "f0f0f0f0"}, 7]
REQUESTS = [(WAITING, "late"), (UNIQUE, "once"), (TRAPPED, "with_a_plain_request")]


@pytest.mark.parametrize(("module", "task"), REQUESTS)
@pytest.mark.parametrize("header", ["rlock_delivery", "rlock_received", "rlock_events", "rlock_call"])
def test_what_the_worker_adds_to_a_request_is_never_taken_from_a_message(
    forge, records, module, task, header
):
    """The delivery is part of the owner's name: two messages with one delivery would be one owner."""
    key = new_name()
    headers = [{header: forged} for forged in FORGED]
    sent = [forge(module, task, one, name=key) for nested in headers for one in (nested, {"headers": nested})]
    for one in sent:
        one.get(timeout=SOON)
    runs = records(key, "start")
    assert [entry["held"] for entry in runs] == [True] * len(sent)
    deliveries = {entry["owner"].partition("/")[2].removesuffix(f":{entry['id']}") for entry in runs}
    assert len(deliveries) == len(sent)
    assert all(re.fullmatch("[0-9a-f]{8}", delivery) for delivery in deliveries)
    assert "f0f0f0f0" not in deliveries


def test_a_message_cannot_jump_the_queue(forge, send, name, hold, waiters, locks):
    """It may say that it has waited since 1970, also with the seal of another task: it comes last."""
    with hold(name):
        first = send("work", name, queue=QUEUE)
        waiters.await_count(name, 1)
        headers = {"rlock_attempts": 1, "rlock_since": 1, "rlock_waits_for": f"rlock:{{{name}}}"}
        jumpers = [
            forge(WAITING, "work", {**headers, **more}, name=name, countdown=60)
            for more in ({}, {"rlock_seal": "0" * 32}, {"rlock_seal": "é"})
        ]
        waiters.await_count(name, 4)
        assert waiters(name)[0].endswith(first.id)
        not_parked = forge(WAITING, "work", {"rlock_since": 1}, name=name)
        waiters.await_count(name, 5)
        assert waiters(name)[0].endswith(first.id)
    for one in (first, *jumpers, not_parked):
        assert one.get(timeout=SOON) == one.id


def test_a_fleet_that_allows_no_options_of_a_call_fails_a_message_with_one(
    start_fleet, send, queue, name, records
):
    """The task runs neither with the option nor without it."""
    with start_fleet(1, queues=[queue], conf={"rlock_call_options": []}):
        refused = send("work", name, queue=queue, headers={"rlock_options": {"hold_at_least": 5}})
        with pytest.raises(ConfigurationError, match="cannot choose lock_hold_at_least"):
            refused.get(timeout=SOON)
        assert records(name) == []
        assert send("work", name, queue=queue).get(timeout=SOON)
