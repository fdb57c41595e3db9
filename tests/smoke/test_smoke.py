"""The lock in real workers, through pytest-celery's own fixtures."""

from __future__ import annotations

import json

import pytest
from celery import states

from tests.smoke.tasks import RECORD, leased, locked, skipping
from tests.support.processes import wait_until


def entries(setup) -> list[dict[str, str]]:
    with setup.backend.container.client as client:
        return [json.loads(entry) for entry in client.lrange(RECORD, 0, -1)]


def await_start(setup, task_id: str) -> dict[str, str]:
    """The record of the task's start."""

    def found():
        return next((entry for entry in entries(setup) if entry["id"] == task_id), None)

    return wait_until(found, timeout=20, what=f"task {task_id} to start")


@pytest.mark.slow
def test_both_workers_answer(celery_setup):
    assert celery_setup.ready(ping=True, control=True, docker=True)
    assert len(celery_setup.worker_cluster) == 2


def test_tasks_of_one_key_never_overlap_over_two_workers(celery_setup):
    results = [locked.delay(0.1) for _ in range(6)]
    for result in results:
        result.get(timeout=30)
    written = [(entry["id"], entry["event"]) for entry in entries(celery_setup)]
    finished = [task_id for task_id, event in written if event == "end"]
    assert sorted(finished) == sorted(result.id for result in results)
    assert written == [(task_id, event) for task_id in finished for event in ("start", "end")]


@pytest.mark.slow
def test_another_worker_takes_over_from_a_killed_one(celery_setup):
    holder = await_start(celery_setup, leased.delay(60).id)["hostname"]
    killed, survivor = sorted(celery_setup.worker_cluster, key=lambda worker: worker.hostname() != holder)
    killed.kill()
    successor = leased.delay(0)
    assert successor.get(timeout=30) == survivor.hostname()
    assert f"[{successor.id}] waits" in survivor.logs(), "the dead worker's lease was still in force"


@pytest.mark.slow
def test_a_busy_lock_revokes_a_task_that_skips(celery_setup):
    holder = locked.delay(2)
    await_start(celery_setup, holder.id)
    skipped = skipping.delay(0)
    wait_until(lambda: skipped.state == states.REVOKED, what="the skipped task's state")
    holder.get(timeout=20)
    assert {entry["id"] for entry in entries(celery_setup)} == {holder.id}
