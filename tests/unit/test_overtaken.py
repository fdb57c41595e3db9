"""A delivery that was overtaken by the next one of its task does not tell monitors that the task waits."""

from __future__ import annotations

from types import SimpleNamespace

from celery_rlock.options.headers import LockHeaders
from celery_rlock.server.owner import Owner, new_delivery
from celery_rlock.worker.request import is_overtaken, note_begun


def delivery(attempts, retries=0, replaced=0, task_id="one"):
    headers = LockHeaders(busy_attempts=attempts)
    owner = Owner("worker", new_delivery(retries, replaced), task_id)
    return SimpleNamespace(rlock_owner=owner, rlock_headers=headers)


def test_a_delivery_is_overtaken_when_a_later_one_has_begun():
    first, second, other = delivery(0), delivery(1), delivery(0, task_id="another")
    note_begun(first)
    assert not is_overtaken(first)
    note_begun(second)
    assert is_overtaken(first)
    assert not is_overtaken(second)
    assert not is_overtaken(other)


def test_the_tasks_own_retry_begins_anew():
    note_begun(delivery(3))
    assert not is_overtaken(delivery(0, retries=1))
    assert not is_overtaken(delivery(0, replaced=1))
