"""A task's hold on its lock: what `self.lock` and `current_lock()` give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING

from celery_rlock.core.lock import check_ttl
from celery_rlock.errors import LockLost, LockUnavailable

if TYPE_CHECKING:
    from celery_rlock.core.execution import Execution
    from celery_rlock.core.lease import Lease, LostCallback
    from celery_rlock.core.replies import Busy, Heir

_ENDED = 2


class Hold:
    """The lock of one call of one task, on one key or several; all are held, or none.

    It begins at the depth that its execution was at before.
    """

    def __init__(
        self, execution: Execution, leases: tuple[Lease, ...], *, until_postrun: bool = False
    ) -> None:
        self._execution, self._leases = execution, leases
        self._outside = {lease: lease.depth for lease in leases}
        self.until_postrun = until_postrun
        self.heir: Heir | None = None  #: who has the keys after us
        self.found_busy = ""  #: when it was not to be had first, by the server's clock in microseconds

    @property
    def key(self) -> str:
        """The key; several are joined by commas."""
        return ", ".join(self.keys)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(lease.name.key for lease in self._leases)

    @property
    def owner(self) -> str:
        return str(self._execution.owner)

    @property
    def token(self) -> int:
        """The fencing token: it grows with every new ownership of the key. 0 when there is no lock.

        Of several keys it is the first one's; `tokens` has each.
        """
        return self._leases[0].token

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each key."""
        return {lease.name.key: lease.token for lease in self._leases}

    @property
    def depth(self) -> int:
        return min(lease.depth for lease in self._leases)

    @property
    def held(self) -> bool:
        """Whether the lock is ours now, by the local deadline: no question to Redis."""
        return all(lease.held for lease in self._leases)

    @property
    def lost(self) -> bool:
        """Whether it was ours and is not any more."""
        return any(lease.lost is not None for lease in self._leases) or (self.entered and not self.held)

    @property
    def entered(self) -> bool:
        """Whether this call is in, so that there is something to release."""
        return any(lease.depth > outside for lease, outside in self._outside.items())

    @property
    def since(self) -> float:
        """When the last of the keys was taken, by the local monotonic clock."""
        return max(lease.since for lease in self._leases)

    @property
    def seconds(self) -> float:
        """For how long it has been taken."""
        return monotonic() - self.since

    def ensure(self) -> None:
        """Raise LockLost unless the lock is held."""
        for lease in self._leases:
            lease.ensure_not_lost()
        if not self.entered:
            raise LockLost(self.key, self.owner, "it is not held here")

    def extend(self, seconds: float) -> None:
        """Let the lease last at least `seconds` from now; renewal goes on as before."""
        self.ensure()
        for lease in self._leases:
            lease.extend(check_ttl(seconds))

    def enter(self, ttl: float, replicas: int = 0) -> Busy | None:
        """Take all the keys, in order; none of them when one is busy or cannot be had."""
        busy = None
        try:
            for lease in self._leases:
                busy = self._execution.enter(lease, ttl, replicas)
                if busy is not None:
                    break
        except BaseException:
            with suppress(LockUnavailable):
                self.leave()
            raise
        if busy is not None:
            self.found_busy = self.found_busy or busy.since
            self.leave()
        return busy

    def renew_for(self, seconds: float) -> None:
        """Renew what this call took for so long from its start, and then no more."""
        for lease, outside in self._outside.items():
            if outside == 0:
                lease.renew_until = lease.since + seconds

    def leave(self, *, early: bool = False) -> None:
        """Back to the depth before this call. LockUnavailable when Redis could not be told.

        With `early` the lock stays held when a copy of the task's message was delivered: until `finish`.
        """
        self._end(lambda first, outside: self._execution.leave(first, outside, early=early, heir=self.heir))

    def finish(self, retries: int) -> None:
        """The task has ended: free its lock, and tell the copies of its message."""
        self._end(lambda first, _: self._execution.finish(first, retries, self.heir))

    def announce_copy(self, retries: int) -> None:
        """A copy of the task's message is on its way: keep the lock until `finish`, and tell it then."""
        first = self._leases[0]
        first.scripts.copy(first.name, first.owner.task_id, retries)

    def has_ended(self, retries: int) -> bool:
        """Whether the task has ended in an earlier delivery of its message."""
        first = self._leases[0]
        return first.scripts.copy(first.name, first.owner.task_id, retries) == _ENDED

    @contextmanager
    def watched(self, tell: LostCallback) -> Iterator[None]:
        """Inside, the loss of any of the keys is told."""
        for lease in self._leases:
            lease.on_lost.append(tell)
        try:
            yield
        finally:
            for lease in self._leases:
                lease.check_deadline()  # nobody may have looked while a long call kept the process busy
                lease.on_lost.remove(tell)

    def _end(self, end_first: Callable[[Lease, int], None]) -> None:
        """Leave every key. The first one, which all copies of the message take first, is where they learn."""
        errors = []
        for lease, outside in reversed(self._outside.items()):
            try:
                if lease is self._leases[0]:
                    end_first(lease, outside)
                else:
                    self._execution.leave(lease, outside, heir=self.heir)
            except LockUnavailable as error:
                errors.append(error)
        if errors:
            raise errors[0]

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
