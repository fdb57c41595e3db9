"""A task's hold on its lock: what `self.lock` and `current_lock()` give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from celery_rlock.core.lock import check_ttl
from celery_rlock.errors import LockLost

if TYPE_CHECKING:
    from celery_rlock.core.execution import Execution
    from celery_rlock.core.lease import Lease


class Hold:
    """The lock of one call of one task. It begins at the depth that its execution was at before."""

    def __init__(self, execution: Execution, lease: Lease, *, until_postrun: bool = False) -> None:
        self._execution, self._lease = execution, lease
        self._outside = lease.depth
        self.until_postrun = until_postrun

    @property
    def key(self) -> str:
        return self._lease.name.key

    @property
    def owner(self) -> str:
        return str(self._lease.owner)

    @property
    def token(self) -> int:
        """The fencing token: it grows with every new ownership of the key. 0 when there is no lock."""
        return self._lease.token

    @property
    def depth(self) -> int:
        return self._lease.depth

    @property
    def held(self) -> bool:
        """Whether the lock is ours now, by the local deadline: no question to Redis."""
        return self._lease.held

    @property
    def lost(self) -> bool:
        """Whether it was ours and is not any more."""
        return self._lease.lost is not None or (self.entered and not self._lease.held)

    @property
    def entered(self) -> bool:
        """Whether this call is in, so that there is something to release."""
        return self._lease.depth > self._outside

    def ensure(self) -> None:
        """Raise LockLost unless the lock is held."""
        self._lease.ensure_not_lost()
        if not self.entered:
            raise LockLost(self.key, self.owner, "it is not held here")

    def extend(self, seconds: float) -> None:
        """Let the lease last at least `seconds` from now; renewal goes on as before."""
        self.ensure()
        self._lease.extend(check_ttl(seconds))

    def leave(self, *, early: bool = False) -> None:
        """Back to the depth before this call. LockUnavailable when Redis could not be told.

        With `early` the lock stays held when a copy of the task's message was delivered: until `finish`.
        """
        self._execution.leave(self._lease, self._outside, early=early)

    def announce_copy(self, retries: int) -> None:
        """A copy of the task's message is on its way: keep the lock until `finish`, and tell it then."""
        self._lease.scripts.copy(self._lease.name, self._lease.owner.task_id, retries)

    def finish(self, retries: int) -> None:
        """The task has ended: free its lock, and tell the copies of its message."""
        self._execution.finish(self._lease, retries)

    def __repr__(self) -> str:
        return f"<Hold {self.key!r} owner={self.owner} token={self.token} depth={self.depth}>"


_current: ContextVar[Hold | None] = ContextVar("celery_rlock_hold", default=None)


def current_lock() -> Hold | None:
    """The lock of the task that runs here; None outside of any, or when locking is switched off."""
    return _current.get()


@contextmanager
def holding(hold: Hold) -> Iterator[None]:
    """Inside, `hold` is the current lock."""
    before = _current.set(hold)
    try:
        yield
    finally:
        _current.reset(before)
