"""What a user's type checker sees."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_rlock import DuplicateTask, LockBusy, LockedTask, RLock, current_lock

app: Celery[Any] = Celery("typed")


@app.task(base=LockedTask, bind=True, lock_key="account:{account_id}", lock_ttl=60)
def charge(self: LockedTask, account_id: int) -> int:
    self.lock.ensure()
    token: int = self.lock.token
    tokens: dict[str, int] = self.lock.tokens
    assert tokens[self.lock.key] == token
    self.lock.extend(60.0)
    return token


def publish(task: LockedTask) -> str:
    try:
        return str(task.apply_async((7,), lock_busy="skip", lock_ttl=5, countdown=10).id)
    except DuplicateTask as error:
        return error.task_id


def choose(task: LockedTask, error: LockBusy) -> str:
    return "skip" if error.lease_left > 1 else "retry"


def in_a_view() -> bool:
    with RLock("account:7", ttl=5) as lock:
        assert lock.held
        deep: int = lock.depth
    entered: bool = RLock("account:7").acquire(blocking=False)
    held = current_lock()
    return entered and deep > 0 and (held is None or held.held)
