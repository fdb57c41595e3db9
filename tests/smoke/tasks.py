"""Tasks on one key that record when they start and end; pytest-celery copies this module to the workers."""

from __future__ import annotations

import json
import time

from celery import Task, shared_task

from celery_rlock import LockedTask

RECORD = "smoke:record"


def recorded(task: Task, seconds: float) -> str:
    """Take `seconds`, between an entry at the start and one at the end of the list RECORD."""
    record(task, "start")
    time.sleep(seconds)
    record(task, "end")
    return task.request.hostname


def record(task: Task, event: str) -> None:
    entry = {"event": event, "id": task.request.id, "hostname": task.request.hostname}
    task.backend.client.rpush(RECORD, json.dumps(entry))


@shared_task(
    base=LockedTask, lock_key="smoke", lock_busy="retry", lock_backoff=0.1, lock_backoff_max=0.5, bind=True
)
def locked(self, seconds: float) -> str:
    return recorded(self, seconds)


@shared_task(base=LockedTask, lock_key="smoke", lock_ttl=2, lock_backoff=0.2, lock_backoff_max=0.5, bind=True)
def leased(self, seconds: float) -> str:
    """Its lock outlives a killed worker by two seconds."""
    return recorded(self, seconds)


@shared_task(base=LockedTask, lock_key="smoke", lock_busy="skip", bind=True)
def skipping(self, seconds: float) -> str:
    return recorded(self, seconds)
