"""One line in the log for each change of a task's lock, under `celery_rlock`.

A run that nobody contends says nothing above DEBUG.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_rlock import signals
from celery_rlock.core.log import about, logger

if TYPE_CHECKING:
    from celery_rlock.errors import LockBusy, LockLost, LockUnavailable
    from celery_rlock.hold import Hold


def tell(level: int, task: Any, request: Any, text: str, *args: object, key: str, owner: object) -> None:
    """Log a line about this task's lock."""
    if logger.isEnabledFor(level):
        task_id = request.id if request is not None else None
        logger.log(level, f"Task %s[%s] {text}", task.name, task_id, *args, extra=about(key, owner, task_id))


def _acquired(sender: Any, lock: Hold, request: Any, waited: float, **_: Any) -> None:
    level = logging.INFO if waited else logging.DEBUG
    text = "acquired lock %r after waiting for %.3f s"
    tell(level, sender, request, text, lock.key, waited, key=lock.key, owner=lock.owner)


def _busy(sender: Any, error: LockBusy, action: str, request: Any, owner: str, **_: Any) -> None:
    tell(logging.INFO, sender, request, "%s: %s", action, error, key=error.key, owner=owner)


def _released(sender: Any, lock: Hold, request: Any, held: float, **_: Any) -> None:
    if lock.lost:
        text, level = "left lock %r, which it had lost, %.3f s after it took it", logging.WARNING
    else:
        text, level = "released lock %r after %.3f s", logging.DEBUG
    tell(level, sender, request, text, lock.key, held, key=lock.key, owner=lock.owner)


def _lost(sender: Any, error: LockLost, request: Any, **_: Any) -> None:
    tell(logging.ERROR, sender, request, "%s", error, key=error.key, owner=error.owner)


def _unavailable(
    sender: Any, error: LockUnavailable, action: str, request: Any, owner: str, **_: Any
) -> None:
    tell(logging.WARNING, sender, request, "%s: %s", action, error, key=error.key, owner=owner)


signals.lock_acquired.connect(_acquired, weak=False, dispatch_uid="celery_rlock.logs")
signals.lock_busy.connect(_busy, weak=False, dispatch_uid="celery_rlock.logs")
signals.lock_released.connect(_released, weak=False, dispatch_uid="celery_rlock.logs")
signals.lock_lost.connect(_lost, weak=False, dispatch_uid="celery_rlock.logs")
signals.lock_unavailable.connect(_unavailable, weak=False, dispatch_uid="celery_rlock.logs")
