"""What a worker says of its waiters, and what still ends the waiting."""

from __future__ import annotations

from collections import Counter

import pytest
from celery import states

from celery_rlock import LockBusy
from tests.support.processes import wait_until
from tests.waking.fleet import SOON, await_rest, deliveries, inspect


@pytest.fixture
def scheduled(app, fleet):
    """The ids that `celery inspect scheduled` shows, in all workers."""

    def shown():
        answers = inspect(app, fleet, "scheduled").values()
        return Counter(entry["request"]["id"] for tasks in answers for entry in tasks)

    return shown


def test_inspect_scheduled_shows_each_waiter_once(scheduled, send, name, hold, waiters):
    with hold(name):
        sent = [send("work", name) for _ in range(3)]
        waiters.await_count(name, 3)
        shown = scheduled()
        assert {task.id: shown[task.id] for task in sent} == {task.id: 1 for task in sent}
    for task in sent:
        task.get(timeout=SOON)


def test_inspect_scheduled_forgets_a_waiter_that_was_woken(scheduled, send, name, hold, waiters):
    with hold(name):
        sent = send("work", name)
        waiters.await_count(name, 1)
    sent.get(timeout=SOON)
    wait_until(lambda: not scheduled()[sent.id], timeout=SOON, what="it to be forgotten")


def test_waiters_that_have_gone_leave_the_prefetch_count_as_it_was(app, fleet, send, name, hold, waiters):
    """What waits needs room beside what runs; a worker that forgets to give it back takes ever more."""

    def prefetch():
        answers = inspect(app, fleet, "stats").values()
        return [answer["prefetch_count"] for answer in answers]

    await_rest(app, fleet)
    before = sum(prefetch())
    with hold(name):
        sent = [send("work", name) for _ in range(20)]
        waiters.await_count(name, 20)
        assert sum(prefetch()) == before + 20
    for task in sent:
        task.get(timeout=SOON)
    wait_until(lambda: sum(prefetch()) == before, timeout=SOON, what="the prefetch count of before")


def test_max_attempts_bound_the_waiting(fleet, send, name, hold, waiters, records):
    with hold(name):
        sent = send("impatient", name)
        with pytest.raises(LockBusy):
            sent.get(timeout=SOON)
        wait_until(lambda: not waiters(name), timeout=SOON, what="its place to be given up")
    assert not records(name)


def test_an_attempt_that_is_left_is_woken(fleet, send, name, hold, waiters):
    """Semantics 12: with `lock_max_attempts` too."""
    with hold(name):
        sent = send("patient", name)
        waiters.await_count(name, 1)
    assert sent.get(timeout=SOON) == sent.id


def test_a_callable_is_asked_at_each_end_of_the_backoff(fleet, send, name, hold, waiters, records):
    with hold(name):
        sent = send("choosing", name)
        wait_until(lambda: sent.state == states.REVOKED, timeout=SOON, what="the callable's choice")
        assert len(records(f"asked:{name}")) == 3
        wait_until(lambda: not waiters(name), timeout=SOON, what="its place to be given up")
    assert not records(name)


def test_a_rate_limited_waiter_is_woken(fleet, send, name, hold, waiters):
    """Semantics 12: Celery schedules it in another way."""
    with hold(name):
        sent = [send("rate_limited", name) for _ in range(3)]
        waiters.await_count(name, 3)
    for task in sent:
        assert task.get(timeout=SOON) == task.id
    assert not waiters(name)


def test_a_copy_of_the_message_is_woken_to_be_dropped(fleet, send, name, store, waiters, count):
    """Semantics 10 and 12: at the end of the run that it is a copy of."""
    sent = [send("until_told", name, task_id=f"twice-{name}") for _ in range(2)]
    waiters.await_count(name, 1)
    store.set(f"told:{name}", 1, ex=60)
    wait_until(lambda: sent[0].state == states.SUCCESS, timeout=SOON, what="the end of the run")
    wait_until(lambda: not waiters(name), timeout=SOON, what="the copy's turn")
    wait_until(lambda: deliveries(fleet)[sent[0].id] == 3, timeout=SOON, what="the copy to come again")
    assert count(name, "start") == {sent[0].id: 1}


def test_a_waiter_whose_place_was_lost_is_served_by_its_backoff(fleet, send, name, hold, waiters):
    """Semantics 12: the backoff is the safety net, also when Redis has evicted or forgotten the places."""
    with hold(name):
        sent = send("soon_again", name)
        waiters.await_count(name, 1)
        waiters.lose(name)
    assert sent.get(timeout=SOON) == sent.id
