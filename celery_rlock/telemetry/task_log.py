"""One log line for each change of a task's lock, under the logger `celery_rlock`.

A run without contention logs nothing above DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any

from celery_rlock import signals
from celery_rlock.errors import LockBusy, LockLost, LockUnavailable, TaskReplaced
from celery_rlock.log import about, logger
from celery_rlock.running.task_lock import TaskLock

_UID = "celery_rlock.task_log"

#: What the task does, by the action that the signal names.
_BUSY = {
    "retry": "waits",
    "wait": "waits in place",
    "skip": "is skipped",
    "fail": "fails",
    "reject": "is rejected",
    "replace": "replaces the run that has its lock",
}
_UNAVAILABLE = {"retry": "tries again later", "fail": "fails", "run": "runs without its lock"}


def _log(level: int, text: str, task: Any, request: Any, *args: object, key: str, owner: object) -> None:
    """Log a line that begins with the task's name and id."""
    task_id = request.id if request is not None else None
    logger.log(level, text, task.name, task_id, *args, extra=about(key, owner, task_id))


@signals.lock_acquired.connect(weak=False, dispatch_uid=_UID)
def _on_acquired(sender: Any, lock: TaskLock, request: Any, waited: float, **_: Any) -> None:
    level = logging.INFO if waited else logging.DEBUG
    if logger.isEnabledFor(level):
        text = "Task %s[%s] acquired lock %r after waiting for %.3f s"
        _log(level, text, sender, request, lock.key, waited, key=lock.key, owner=lock.owner)


@signals.lock_released.connect(weak=False, dispatch_uid=_UID)
def _on_released(sender: Any, lock: TaskLock, request: Any, held: float, **_: Any) -> None:
    if lock.lost:
        text = "Task %s[%s] ended %.3f s after it took lock %r, which it had lost"
        _log(logging.WARNING, text, sender, request, held, lock.key, key=lock.key, owner=lock.owner)
    elif logger.isEnabledFor(logging.DEBUG):
        text = "Task %s[%s] released lock %r after %.3f s"
        _log(logging.DEBUG, text, sender, request, lock.key, held, key=lock.key, owner=lock.owner)


@signals.lock_busy.connect(weak=False, dispatch_uid=_UID)
def _on_busy(sender: Any, error: LockBusy, action: str, request: Any, owner: str, **_: Any) -> None:
    text, does = "Task %s[%s] %s: %s", _BUSY.get(action, action)
    _log(logging.INFO, text, sender, request, does, error.summary, key=error.key, owner=owner)


@signals.lock_replaced.connect(weak=False, dispatch_uid=_UID)
def _on_replaced(sender: Any, error: TaskReplaced, request: Any, **_: Any) -> None:
    text = "Task %s[%s] is %s"
    _log(logging.INFO, text, sender, request, error.summary, key=error.key, owner=error.owner)


@signals.lock_lost.connect(weak=False, dispatch_uid=_UID)
def _on_lost(sender: Any, error: LockLost, request: Any, **_: Any) -> None:
    text = "Task %s[%s]: %s"
    _log(logging.ERROR, text, sender, request, error.summary, key=error.key, owner=error.owner)


@signals.lock_unavailable.connect(weak=False, dispatch_uid=_UID)
def _on_unavailable(
    sender: Any, error: LockUnavailable, action: str, request: Any, owner: str, **_: Any
) -> None:
    text, does = "Task %s[%s] %s: %s", _UNAVAILABLE.get(action, action)
    _log(logging.WARNING, text, sender, request, does, error.summary, key=error.key, owner=owner)
