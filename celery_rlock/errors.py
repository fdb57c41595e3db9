"""The errors a user may meet.

Every field is a positional argument, so that an error survives pickling and the JSON result backend.
"""

from __future__ import annotations


class RLockError(Exception):
    """Anything celery-rlock raises."""


class ConfigurationError(RLockError):
    """An option, a setting, a key or a URL cannot be used; the text says which, and what to do."""


class LockBusy(RLockError):
    """Somebody else holds the lock."""

    def __init__(self, key: str, holder: str, lease_left: float = 0.0) -> None:
        super().__init__(key, holder, lease_left)
        self.key, self.holder, self.lease_left = key, holder, lease_left

    def __str__(self) -> str:
        return (
            f"lock {self.key!r} is held by {self.holder} (its lease ends in {self.lease_left:.1f} s unless "
            "renewed): try again later; lock_busy, lock_wait and lock_max_attempts choose what happens"
        )


class LockLost(RLockError):
    """The lease ended, or somebody took the lock, while it was needed."""

    def __init__(self, key: str, owner: str, reason: str) -> None:
        super().__init__(key, owner, reason)
        self.key, self.owner, self.reason = key, owner, reason

    def __str__(self) -> str:
        return (
            f"lock {self.key!r} of {self.owner} is lost: {self.reason}; another may run by now: stop, "
            "and protect writes with the lock's token"
        )


class LockNotHeld(RLockError, RuntimeError):
    """A release (or extend) by somebody who does not hold the lock."""

    def __init__(self, key: str, owner: str) -> None:
        super().__init__(key, owner)
        self.key, self.owner = key, owner

    def __str__(self) -> str:
        return (
            f"lock {self.key!r} is not held by {self.owner}: it was never acquired here, was already "
            "released, or was lost; only its holder may release or extend it"
        )


class DuplicateTask(RLockError):
    """The same task is queued or running under the same key, so this one was not published."""

    def __init__(self, key: str, task_id: str, holder: str) -> None:
        super().__init__(key, task_id, holder)
        self.key, self.task_id, self.holder = key, task_id, holder

    def __str__(self) -> str:
        return (
            f"not published: task {self.task_id} already has lock {self.key!r} ({self.holder}); wait for its "
            'result, or choose lock_duplicate="existing" to be given it'
        )


class LockUnavailable(RLockError):
    """Redis did not answer, or not in time: nobody knows whether the lock is free."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key, self.reason = key, reason

    def __str__(self) -> str:
        return (
            f"lock {self.key!r} is unavailable: {self.reason}; check rlock_url and the server, or choose "
            "what happens with lock_unavailable"
        )
