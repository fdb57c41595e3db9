"""Two tasks that must not overlap."""

from __future__ import annotations

import time

from celery_rlock import LockedTask
from proj.celery import app


@app.task(base=LockedTask, bind=True, lock_key="account:{account_id}", lock_lost="abort")
def charge(self: LockedTask, account_id: int, amount: int, seconds: float = 0) -> dict[str, int]:
    """One run at a time for each account. Cut off from Redis, it stops before another pod may start."""
    time.sleep(seconds)
    self.lock.ensure()
    return {"account": account_id, "charged": amount, "token": self.lock.token}


@app.task(base=LockedTask, lock_busy="skip", lock_hold_at_least=55)
def close_books() -> str:
    """Runs once a minute, even while two beats publish it."""
    return time.strftime("%H:%M")
