"""The signals a user may connect to, and the one that ends every run.

As with all of Celery's signals, an error in a receiver is logged and reaches nobody else.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: `run()` is about to start under the lock. sender: the task; lock.
lock_acquired = Signal(name="lock_acquired", providing_args=["lock"])

#: Somebody else holds the lock. sender: the task; error (LockBusy), action ("retry", "skip", …).
lock_busy = Signal(name="lock_busy", providing_args=["error", "action"])

#: The task has left its lock. sender: the task; lock.
lock_released = Signal(name="lock_released", providing_args=["lock"])

#: The lock was lost while `run()` ran. sender: the task; lock, error (LockLost). Sent on another thread.
lock_lost = Signal(name="lock_lost", providing_args=["lock", "error"])

#: Redis could not be reached. sender: the task; error (LockUnavailable), action ("retry", "fail", "run").
lock_unavailable = Signal(name="lock_unavailable", providing_args=["error", "action"])

#: Internal: sent in the `finally` around `run()`; the release handler listens. sender: the task; call.
run_ended = Signal(name="run_ended", providing_args=["call"])
