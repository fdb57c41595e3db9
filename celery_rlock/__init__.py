"""A lock around Celery tasks: `@app.task(base=LockedTask)`."""

from celery_rlock.errors import (
    ConfigurationError,
    DuplicateTask,
    LockBusy,
    LockLost,
    LockNotHeld,
    LockUnavailable,
    RLockError,
)
from celery_rlock.hold import current_lock
from celery_rlock.rlock import RLock
from celery_rlock.task import LockedTask

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "LockBusy",
    "LockLost",
    "LockNotHeld",
    "LockUnavailable",
    "LockedTask",
    "RLock",
    "RLockError",
    "current_lock",
]
