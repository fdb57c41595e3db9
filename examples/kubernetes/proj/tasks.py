"""Two tasks that must not overlap."""

from __future__ import annotations

import time

from celery_rlock import LockedTask
from proj.celery import app


@app.task(base=LockedTask, bind=True, lock_key="account:{account_id}", lock_lost="abort")
def charge(self: LockedTask, account_id: int, amount: int, seconds: float = 0) -> dict[str, int]:
    """One at a time for each account; cut off from Redis, it stops before another pod may start."""
    time.sleep(seconds)
    self.lock.ensure()
    return {"account": account_id, "charged": amount, "token": self.lock.token}


@app.task(base=LockedTask, lock_busy="skip", lock_hold_at_least=55)
def close_books() -> str:
    """Every minute, and once a minute also while two beats run."""
    return time.strftime("%H:%M")
