"""One line in the log for each change of a task's lock, under `celery_rlock`.

A run that nobody contends says nothing above DEBUG.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from celery_rlock import signals
from celery_rlock.core.log import about, logger

if TYPE_CHECKING:
    from celery_rlock.errors import LockBusy, LockLost, LockUnavailable
    from celery_rlock.hold import Hold


def tell(level: int, text: str, task: Any, request: Any, *args: object, key: str, owner: object) -> None:
    """Log a line that begins with the task's name and id."""
    task_id = request.id if request is not None else None
    logger.log(level, text, task.name, task_id, *args, extra=about(key, owner, task_id))


def _acquired(sender: Any, lock: Hold, request: Any, waited: float, **_: Any) -> None:
    level = logging.INFO if waited else logging.DEBUG
    if logger.isEnabledFor(level):
        text = "Task %s[%s] acquired lock %r after waiting for %.3f s"
        tell(level, text, sender, request, lock.key, waited, key=lock.key, owner=lock.owner)


def _released(sender: Any, lock: Hold, request: Any, held: float, **_: Any) -> None:
    if lock.lost:
        text = "Task %s[%s] left lock %r, which it had lost, %.3f s after it took it"
        tell(logging.WARNING, text, sender, request, lock.key, held, key=lock.key, owner=lock.owner)
    elif logger.isEnabledFor(logging.DEBUG):
        text = "Task %s[%s] released lock %r after %.3f s"
        tell(logging.DEBUG, text, sender, request, lock.key, held, key=lock.key, owner=lock.owner)


def _busy(sender: Any, error: LockBusy, action: str, request: Any, owner: str, **_: Any) -> None:
    tell(logging.INFO, "Task %s[%s] %s: %s", sender, request, action, error, key=error.key, owner=owner)


def _lost(sender: Any, error: LockLost, request: Any, **_: Any) -> None:
    listen()  # it will end late
    tell(logging.ERROR, "Task %s[%s]: %s", sender, request, error, key=error.key, owner=error.owner)


def _unavailable(
    sender: Any, error: LockUnavailable, action: str, request: Any, owner: str, **_: Any
) -> None:
    tell(logging.WARNING, "Task %s[%s] %s: %s", sender, request, action, error, key=error.key, owner=owner)


@cache
def listen() -> None:
    """Hear of locks that are taken and left, too."""
    signals.lock_acquired.connect(_acquired, weak=False, dispatch_uid="celery_rlock.logs")
    signals.lock_released.connect(_released, weak=False, dispatch_uid="celery_rlock.logs")


signals.lock_busy.connect(_busy, weak=False, dispatch_uid="celery_rlock.logs")
signals.lock_lost.connect(_lost, weak=False, dispatch_uid="celery_rlock.logs")
signals.lock_unavailable.connect(_unavailable, weak=False, dispatch_uid="celery_rlock.logs")
