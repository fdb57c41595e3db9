"""What the processes of a conformance run note down, and where.

A *cell* is one shape of a task with one way to acknowledge and one twin: `late.locked.retry`. The names of
all tasks of a cell begin with it. A *run* is one worker with its broker: `topic-gevent`.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import redis
from celery import current_task

from tests.support.app import store

#: The options of each locked twin whose lock is free.
FREE_TWINS: dict[str, dict[str, Any]] = {
    "locked": {},
    "limited": {"lock_limit": 2},
    "replaceable": {"lock_busy": "replace"},  # its run listens for a newer call
    "queued": {"lock_from": "publish", "lock_pending": 9, "lock_duplicate": "replace"},
}
#: The plain twin, the locked ones whose lock is free, and the locked one that finds its lock busy first.
TWINS = ("plain", *FREE_TWINS, "waited")
ACKS = ("early", "late")

#: The environment variable with the name of the run.
RUN = "RLOCK_CONFORMANCE_RUN"


def run_name() -> str:
    return os.environ.get(RUN, "none")


def nodename(run: str) -> str:
    """The name of the run's worker."""
    return f"{run}@conformance"


def cell_of(task: str, kwargs: Any = None) -> str | None:
    """The cell of a task's name. `celery.map` and `celery.starmap` have the task in their arguments."""
    if task.startswith("celery.") and kwargs:
        task = dict(kwargs).get("task", {}).get("task", task)
    parts = task.split(".")
    return ".".join(parts[:3]) if parts[0] in ACKS else None


def role_of(task: str) -> str:
    """The task's name within its cell."""
    return task if task.startswith("celery.") else task.split(".", 3)[-1]


def place() -> str:
    """The execution that runs here; empty outside of any task.

    It begins with the task's id, retries and nesting. Two deliveries of one message may run at the same time:
    the rest tells them apart.
    """
    if not current_task:
        return ""
    request = current_task.request_stack.top
    nesting = request.replaced_task_nesting or 0
    return f"{request.id}/{request.retries}/{nesting}/{os.getpid()}/{id(request)}"


def note(cell: str | None, kind: str, task_id: str | None, *, at: str | None = None, **fields: Any) -> None:
    """Append to the notes of a cell in this run."""
    if cell is not None:
        at = place() if at is None else at
        entry = {"kind": kind, "id": task_id, "at": at, **fields}
        _client(os.getpid()).rpush(notes_key(run_name(), cell), json.dumps(entry, default=repr))


def notes_key(run: str, cell: str) -> str:
    return f"conformance:{run}:{cell}"


@functools.cache
def _client(_pid: int) -> redis.Redis:
    return store()
