"""The signals that a user may connect to.

As with all of Celery's signals, an error in a receiver is logged and goes no further. The sender is the task.
`request` is its request, or None if the task was called directly. A receiver must end with `**kwargs`,
because fields may be added.
"""

from __future__ import annotations

from functools import partial

from celery.utils.dispatch import Signal

#: To look for the receivers once per task, not once per signal, saves 3 µs each time.
_Signal = partial(Signal, use_caching=True)

lock_acquired = _Signal(name="lock_acquired", providing_args=["lock", "request", "waited"])
"""`run()` is about to start under the lock.

Fields: lock; waited (seconds since the lock was first found busy, or 0).
"""

lock_busy = _Signal(name="lock_busy", providing_args=["error", "action", "request", "owner", "waited"])
"""Another execution holds the lock.

Fields: error (LockBusy); action ("retry", "skip", …; "wait" means in place); owner (of the call that found it
busy); waited (seconds since the lock was first found busy).
"""

lock_released = _Signal(name="lock_released", providing_args=["lock", "request", "held"])
"""The task has released its lock. Fields: lock; held (seconds since the task took it)."""

lock_lost = _Signal(name="lock_lost", providing_args=["lock", "error", "request", "held"])
"""The task lost its lock while `run()` ran. Fields: lock; error (LockLost); held. Sent on another thread."""

lock_unavailable = _Signal(name="lock_unavailable", providing_args=["error", "action", "request", "owner"])
"""Redis could not be reached.

Fields: error (LockUnavailable); action ("retry", "fail", "run"); owner (of the call that asked).
"""

lock_replaced = _Signal(name="lock_replaced", providing_args=["error", "request", "held"])
"""With `lock_busy="replace"`: a newer call replaces this one, which is told to end.

Fields: error (TaskReplaced, which names the newer task); held (seconds since the task took its lock; 0 if it
has not started). While `run()` runs it is sent on another thread.
"""

lock_duplicate = _Signal(name="lock_duplicate", providing_args=["error", "action"])
"""With `lock_from="publish"`: a call is not published, because the same task is queued or running.

Sent in the process that publishes. Fields: error (DuplicateTask, which names the other task); action
("existing": the caller gets that task's result, or "raise").
"""

lock_superseded = Signal(name="lock_superseded", providing_args=["task_id", "key", "by"])
"""With `lock_duplicate="replace"`: a later call has taken the place of a pending one, which ends as REVOKED.

Sent in the process that publishes. Fields: task_id (of the call that does not run); key; by (the later call's
task id).
"""
