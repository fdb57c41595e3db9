"""A delivery that was overtaken by the next one of its task does not tell monitors that the task waits."""

from __future__ import annotations

from types import SimpleNamespace

from celery_rlock.waiter import BUSY_ATTEMPTS
from celery_rlock.worker.overtaken import begins, is_overtaken


def delivery(attempts, retries=0, task_id="one"):
    return SimpleNamespace(id=task_id, request_dict={BUSY_ATTEMPTS: attempts, "retries": retries})


def test_a_delivery_is_overtaken_when_a_later_one_has_begun():
    first, second, other = delivery(None), delivery(1), delivery(None, task_id="another")
    begins(first)
    assert not is_overtaken(first)
    begins(second)
    assert is_overtaken(first)
    assert not is_overtaken(second)
    assert not is_overtaken(other)


def test_the_tasks_own_retry_begins_anew():
    begins(delivery(3))
    assert not is_overtaken(delivery(None, retries=1))
