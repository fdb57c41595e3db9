"""User code without mistakes: type checkers must accept all of it."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_rlock import DuplicateTask, LockBusy, LockedTask, LockLost, RLock, TaskLock, current_lock
from celery_rlock.asyncio import RLock as AsyncRLock

app: Celery[Any] = Celery("typed")


@app.task(base=LockedTask, bind=True, lock_key="account:{account_id}", lock_ttl=60)
def charge(self: LockedTask, account_id: int) -> int:
    self.lock.ensure()
    token: int = self.lock.token
    tokens: dict[str, int] = self.lock.tokens
    slot: int = self.lock.slot
    assert self.lock.slots == {self.lock.key: slot}
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
    entered: bool = RLock("account:7", limit=3).acquire(blocking=False)
    held = current_lock()
    return entered and deep > 0 and (held is None or held.held)


async def in_an_async_view() -> int:
    async with AsyncRLock("account:7", ttl=5) as lock:
        assert lock.held
        await lock.extend(5)
        token: int = lock.token
    entered: bool = await AsyncRLock("account:7", limit=3).acquire(timeout=0.5)
    return token if entered else 0


class Careful(LockedTask):
    """Every option, with a value of each kind that it takes."""

    abstract = True
    lock_key = ("account:{source}", lambda source, target: f"account:{target}")
    lock_limit = 1
    lock_ttl = 60
    lock_max_hold = None
    lock_hold_at_least = 1.5
    lock_wait = 0.5
    lock_busy = "replace"
    lock_backoff = 1
    lock_backoff_max = 10.0
    lock_jitter = False
    lock_max_attempts = 3
    lock_unavailable = "fail"
    lock_lost = "abort"
    lock_from = "publish"
    lock_until = "postrun"
    lock_queue_ttl = 60
    lock_duplicate = "raise"
    lock_replicas = 1

    def lock_account(self, account_id: int) -> None:
        """A method of the user's own is no option."""


def on_lost(task: LockedTask, error: LockLost) -> None:
    print(task.name, error.reason)


class Choosing(LockedTask):
    abstract = True
    lock_busy = choose
    lock_limit = (3, lambda plan, **_: 10 if plan == "pro" else 1)
    lock_lost = on_lost


def annotated(task: LockedTask) -> TaskLock:
    return task.lock
