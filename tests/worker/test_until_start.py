"""`lock_until="start"`: at most one call is queued, however many run."""

from __future__ import annotations

from uuid import uuid4

import pytest
from celery import Celery

from celery_rlock import ConfigurationError, LockedTask


def test_a_task_is_unique_while_it_is_queued(proj, name, queue, messages, holder):
    ids = {proj.once_in_queue.apply_async((name,), queue=queue).id for _ in range(3)}
    assert len(ids) == len(messages(queue)) == 1
    assert holder(name) == f"queued:{ids.pop()}"


def test_the_start_frees_the_key_so_a_second_runs_beside_it(
    proj, fleet, name, await_start, holder, records, tell
):
    first = proj.once_in_queue.delay(name, until_told=True)
    await_start(name)
    assert holder(name) is None
    second = proj.once_in_queue.delay(name)
    assert second.id != first.id
    second.get(timeout=20)
    assert [entry["id"] for entry in records(name, "end")] == [second.id]
    tell(name)
    first.get(timeout=20)


def test_the_start_does_not_free_the_key_of_another_call(proj, fleet, name, queue, holder):
    """Semantics 3: a task that was sent by name has no key to free."""
    queued = proj.once_in_queue.apply_async((name,), queue=queue)
    proj.app.send_task(proj.once_in_queue.name, (name,)).get(timeout=20)
    assert holder(name) == f"queued:{queued.id}"


def test_the_end_of_a_run_does_not_free_the_key_of_the_next_call(
    proj, fleet, name, queue, holder, await_start, tell
):
    """Semantics 3: the release is owner-checked."""
    first = proj.once_in_queue.delay(name, until_told=True)
    await_start(name)
    second = proj.once_in_queue.apply_async((name,), queue=queue)
    tell(name)
    first.get(timeout=20)
    assert holder(name) == f"queued:{second.id}"


def test_until_start_needs_a_lock_from_publish(proj, name, queue, messages):
    """Semantics 16: the error comes when the task is defined, or when it is called."""
    app = Celery("unit", set_as_current=False)
    task = app.task(base=LockedTask, shared=False, lock_until="start")(uuid4)
    with pytest.raises(ConfigurationError, match='set lock_from="publish"'):
        task.name  # noqa: B018 - Celery defines a task at its first use
    with pytest.raises(ConfigurationError, match='set lock_from="publish"'):
        proj.work.apply_async((name,), queue=queue, lock_until="start")
    assert messages(queue) == []
