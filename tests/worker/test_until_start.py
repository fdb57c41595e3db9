"""`lock_until="start"`: one in the queue, whatever runs."""

from __future__ import annotations

from uuid import uuid4

import pytest
from celery import Celery

from celery_rlock import ConfigurationError, LockedTask
from tests.support.processes import wait_until


def test_it_is_unique_while_it_is_queued(proj, name, idle, messages, holder):
    ids = {proj.once_in_queue.apply_async((name,), queue=idle).id for _ in range(3)}
    assert len(ids) == len(messages(idle)) == 1
    assert holder(name) == f"queued:{ids.pop()}"


def test_its_start_frees_the_key_so_a_second_runs_beside_it(proj, fleet, name, await_start, holder, overlaps):
    first = proj.once_in_queue.delay(name, 3)
    await_start(name)
    assert holder(name) is None
    second = proj.once_in_queue.delay(name, 0.1)
    assert second.id != first.id
    second.get(timeout=20)
    first.get(timeout=20)
    assert overlaps(name) == 1


def test_its_start_never_frees_the_next_ones_key(proj, fleet, name, idle, holder, await_start):
    """Semantics 3: what is sent by its name has no key to free."""
    queued = proj.once_in_queue.apply_async((name,), queue=idle)
    proj.app.send_task(proj.once_in_queue.name, (name,)).get(timeout=20)
    assert holder(name) == f"queued:{queued.id}"


def test_a_run_that_ends_never_frees_the_next_ones_key(proj, fleet, name, idle, holder, await_start):
    """Semantics 3."""
    first = proj.once_in_queue.delay(name, 1.5)
    await_start(name)
    second = proj.once_in_queue.apply_async((name,), queue=idle)
    first.get(timeout=20)
    wait_until(lambda: first.state == "SUCCESS", timeout=5, what="the end")
    assert holder(name) == f"queued:{second.id}"


def test_it_needs_a_lock_from_publish(proj, name, idle, messages):
    """Semantics 16: when the task is defined, and when it is called."""
    app = Celery("unit", set_as_current=False)
    task = app.task(base=LockedTask, shared=False, lock_until="start")(uuid4)
    with pytest.raises(ConfigurationError, match='set lock_from="publish"'):
        task.name  # noqa: B018 - Celery defines a task at its first use
    with pytest.raises(ConfigurationError, match='set lock_from="publish"'):
        proj.work.apply_async((name,), queue=idle, lock_until="start")
    assert messages(idle) == []
