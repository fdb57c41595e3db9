"""A lock around Celery tasks: `@app.task(base=LockedTask)`."""

# ruff: noqa: I001 - the imports are grouped by topic

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The task and its lock.
    from celery_rlock.task import LockedTask
    from celery_rlock.running.task_lock import TaskLock, current_lock

    # What is in Redis about the lock of a call.
    from celery_rlock.status import Holder, LockStatus, Waiter

    # The same lock for any other code.
    from celery_rlock.rlock import RLock

    # The errors.
    from celery_rlock.errors import (
        ConfigurationError,
        DuplicateTask,
        LockBusy,
        LockLost,
        LockNotHeld,
        LockUnavailable,
        RLockError,
        TaskReplaced,
    )

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "Holder",
    "LockBusy",
    "LockLost",
    "LockNotHeld",
    "LockStatus",
    "LockUnavailable",
    "LockedTask",
    "RLock",
    "RLockError",
    "TaskLock",
    "TaskReplaced",
    "Waiter",
    "current_lock",
]

#: The modules of the names above.
_MODULES = {
    "LockedTask": "task",
    "TaskLock": "running.task_lock",
    "current_lock": "running.task_lock",
    "Holder": "status",
    "LockStatus": "status",
    "Waiter": "status",
    "RLock": "rlock",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used.

    pytest imports this package in every project where it is installed, to find the fixtures in
    `pytest_plugin`. That must not import Celery.
    """
    if name in {"errors", "signals"}:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Registers `celery inspect locks`, `celery control rlock_release` and `rlock_end`, which the client must
    # know too.
    import_module(f"{__name__}.worker.control")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    return found
