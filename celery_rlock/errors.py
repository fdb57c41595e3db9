"""The errors that celery-rlock raises.

Every field is a positional argument, so that an error survives pickling and the JSON result backend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from celery_rlock.log import printable


class RLockError(Exception):
    """Base class of all errors of celery-rlock."""

    @property
    def summary(self) -> str:
        """What is wrong, without the task and the advice: for log lines, which name the task themselves."""
        return str(self)


class ConfigurationError(RLockError):
    """An option, a setting, a key or a URL is wrong, or the lock is used where it cannot work.

    The text says which, and what to do.
    """


class LockBusy(RLockError):
    """Another execution holds the lock.

    `state` is "held"; "resting" if the holder's run is over and `lock_hold_at_least` keeps the key; or
    "queued" if the holder was published and has not started.
    """

    def __init__(
        self, key: str, holder: str, lease_left: float = 0.0, task: str = "", state: str = "held"
    ) -> None:
        super().__init__(key, holder, lease_left, task, state)
        self.key, self.holder, self.lease_left, self.task, self.state = key, holder, lease_left, task, state

    @property
    def summary(self) -> str:
        left = f"{self.lease_left:.1f} s"
        if self.state == "resting":
            return f"lock {self.key!r} rests for another {left} after {self.holder} (lock_hold_at_least)"
        if self.state == "queued":
            return (
                f"lock {self.key!r} is kept for {self.holder}, which is published and has not started "
                f"(its place ends in {left})"
            )
        return f"lock {self.key!r} is held by {self.holder} (its lease ends in {left} unless renewed)"

    def __str__(self) -> str:
        if not self.task:
            return f"{self.summary}; try again, or wait longer with a longer timeout"
        return (
            f"{_of(self.task)}{self.summary}; lock_busy, lock_wait and lock_max_attempts choose whether a "
            "task waits, and how long"
        )


class LockLost(RLockError):
    """The lease ended, or the lock was taken away, while the holder still needed it."""

    def __init__(self, key: str, owner: str, reason: str, task: str = "") -> None:
        super().__init__(key, owner, reason, task)
        self.key, self.owner, self.reason, self.task = key, owner, reason, task

    @property
    def summary(self) -> str:
        return (
            f"lock {self.key!r} of {self.owner} is lost: {self.reason}; another task may already run: stop, "
            "and protect your writes with the lock's token"
        )

    def __str__(self) -> str:
        return _of(self.task) + self.summary


class LockNotHeld(RLockError, RuntimeError):
    """The caller tried to release or extend a lock that it does not hold."""

    def __init__(self, key: str, owner: str) -> None:
        super().__init__(key, owner)
        self.key, self.owner = key, owner

    def __str__(self) -> str:
        return (
            f"lock {self.key!r} is not held by {self.owner}: it was never acquired here, was already "
            "released, or was lost; only its holder may release or extend it"
        )


class DuplicateTask(RLockError):
    """The call was not published, because the same task is already queued or running under the same key."""

    def __init__(self, key: str, task_id: str, holder: str, task: str = "") -> None:
        super().__init__(key, task_id, holder, task)
        self.key, self.task_id, self.holder, self.task = key, task_id, holder, task

    def __str__(self) -> str:
        return (
            f"{_of(self.task)}not published: task {printable(self.task_id)} already has lock {self.key!r} "
            f'({self.holder}); wait for its result, or set lock_duplicate="existing" to get that result from '
            "apply_async"
        )


class TaskReplaced(RLockError):
    """A newer call of the same task replaces this one (`lock_busy="replace"`). It is raised inside `run()`.

    The task ends as REVOKED, whatever its code makes of this error.
    """

    def __init__(self, key: str, by: str, owner: str, task: str = "") -> None:
        super().__init__(key, by, owner, task)
        self.key, self.by, self.owner, self.task = key, by, owner, task

    @property
    def summary(self) -> str:
        return f"replaced by task {printable(self.by)}, a newer call that takes lock {self.key!r}"

    def __str__(self) -> str:
        return f"{_of(self.task)}{self.summary}; clean up and end soon, or the worker terminates this run"


class LockUnavailable(RLockError):
    """Redis did not answer in time, so the caller cannot know whether the lock is free."""

    def __init__(self, key: str, reason: str, task: str = "") -> None:
        super().__init__(key, reason, task)
        self.key, self.reason, self.task = key, reason, task

    def of(self, task: str) -> LockUnavailable:
        """The same error, which names the task. Most of the code below `options` does not know it."""
        return LockUnavailable(self.key, self.reason, task)

    @property
    def summary(self) -> str:
        return f"lock {self.key!r} is unavailable: {self.reason}"

    def __str__(self) -> str:
        return (
            f"{_of(self.task)}{self.summary}; check rlock_url and the server, or set lock_unavailable to "
            "choose what happens"
        )


def _of(task: str) -> str:
    return f"task {task}: " if task else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error's text about an unknown name: the closest known one, or else all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return f", did you mean {close[0]!r}?" if close else f": there are {', '.join(names)}"
