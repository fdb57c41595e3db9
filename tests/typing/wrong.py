"""User code with mistakes. mypy must report each marked line with the text of its mark."""

from __future__ import annotations

from celery_rlock import LockedTask, TaskLock


class Wrong(LockedTask):
    abstract = True
    lock_ttl = "sixty"  # error: Incompatible types in assignment
    lock_bussy = 1  # error: unknown option 'lock_bussy', did you mean 'lock_busy'?
    lock_busy = "skipp"  # error: Incompatible types in assignment
    lock_from = "start"  # error: Incompatible types in assignment
    lock_max_attempts = 1.5  # error: Incompatible types in assignment


class Deeper(Wrong):
    abstract = True
    lock_tll = 30  # error: unknown option 'lock_tll', did you mean 'lock_ttl'?


def use(task: LockedTask) -> str:
    lock: TaskLock = task.lock
    lock.extend("sixty")  # error: Argument 1 to "extend"
    lock.leave()  # error: "TaskLock" has no attribute "leave"
    return lock.token  # error: Incompatible return value type
