"""What a worker shows of its waiting tasks, and what ends their waiting."""

from __future__ import annotations

from collections import Counter

import pytest
from celery import states

from celery_rlock import LockBusy
from tests.support.fleet import await_rest, deliveries, inspect
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, await_state


@pytest.fixture
def scheduled(publisher, fleet):
    """The ids that `celery inspect scheduled` shows, in all workers."""

    def shown():
        answers = inspect(publisher, fleet, "scheduled").values()
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


def test_waiters_that_are_gone_leave_the_prefetch_count_as_it_was(
    publisher, fleet, send, name, hold, waiters
):
    """Each waiting task raises it by one; a worker that did not lower it again would fetch more and more."""

    def prefetch():
        answers = inspect(publisher, fleet, "stats").values()
        return [answer["prefetch_count"] for answer in answers]

    await_rest(publisher, fleet)
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


def test_a_waiter_with_an_attempt_left_is_woken(fleet, send, name, hold, waiters):
    """Semantics 12: with `lock_max_attempts` too."""
    with hold(name):
        sent = send("patient", name)
        waiters.await_count(name, 1)
    assert sent.get(timeout=SOON) == sent.id


def test_a_callable_is_asked_at_each_end_of_the_backoff(fleet, send, name, hold, waiters, records):
    with hold(name):
        sent = send("choosing", name)
        await_state(sent, states.REVOKED)
        assert len(records(f"asked:{name}")) == 3
        wait_until(lambda: not waiters(name), timeout=SOON, what="its place to be given up")
    assert not records(name)


def test_a_rate_limited_waiter_is_woken(fleet, send, name, hold, waiters):
    """Semantics 12: Celery schedules a rate-limited task in another way."""
    with hold(name):
        sent = [send("rate_limited", name) for _ in range(3)]
        waiters.await_count(name, 3)
    for task in sent:
        assert task.get(timeout=SOON) == task.id
    assert not waiters(name)


def test_a_second_delivery_is_woken_to_be_dropped(fleet, send, name, tell, waiters, count):
    """Semantics 10 and 12: at the end of the run of the first delivery."""
    sent = [send("until_told", name, task_id=f"twice-{name}") for _ in range(2)]
    waiters.await_count(name, 1)
    tell(name)
    await_state(sent[0], states.SUCCESS)
    wait_until(lambda: not waiters(name), timeout=SOON, what="the second delivery to leave")
    wait_until(lambda: deliveries(fleet)[sent[0].id] == 3, timeout=SOON, what="its wake-up")
    assert count(name, "start") == {sent[0].id: 1}


def test_a_waiter_whose_place_was_lost_is_served_by_its_backoff(fleet, send, name, hold, waiters):
    """Semantics 12: the backoff is the safety net when Redis has evicted or lost the places."""
    with hold(name):
        sent = send("soon_again", name)
        waiters.await_count(name, 1)
        waiters.lose(name)
    assert sent.get(timeout=SOON) == sent.id
