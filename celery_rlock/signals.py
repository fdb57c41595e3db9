"""The signals a user may connect to, and the one that ends every run.

As with all of Celery's signals, an error in a receiver is logged and reaches nobody else. The sender is the
task; `request` is its request, None where it was called directly. A receiver ends with `**kwargs`: fields may
come.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: `run()` is about to start under the lock. lock; waited (seconds since it was found busy first, else 0).
lock_acquired = Signal(name="lock_acquired", providing_args=["lock", "request", "waited"])

#: Somebody else holds the lock. error (LockBusy); action ("retry", "skip", …, and "wait": in place);
#: owner (who asked); waited (seconds since it was found busy first).
lock_busy = Signal(name="lock_busy", providing_args=["error", "action", "request", "owner", "waited"])

#: The task has left its lock. lock; held (seconds since it was taken).
lock_released = Signal(name="lock_released", providing_args=["lock", "request", "held"])

#: The lock was lost while `run()` ran. lock; error (LockLost); held. Sent on another thread.
lock_lost = Signal(name="lock_lost", providing_args=["lock", "error", "request", "held"])

#: Redis could not be reached. error (LockUnavailable); action ("retry", "fail", "run"); owner (who asked).
lock_unavailable = Signal(name="lock_unavailable", providing_args=["error", "action", "request", "owner"])

#: Internal: sent in the `finally` around `run()`; the release handler listens. call.
run_ended = Signal(name="run_ended", providing_args=["call"])
