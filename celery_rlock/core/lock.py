"""`RLock`: a `threading.RLock` for a fleet."""

from __future__ import annotations

import math
from types import TracebackType
from typing import TYPE_CHECKING

from celery_rlock.core.execution import Execution, current_execution
from celery_rlock.core.lease import Lease
from celery_rlock.core.log import logger
from celery_rlock.core.scripts import Scripts
from celery_rlock.core.waiting import wait
from celery_rlock.errors import ConfigurationError, LockLost, LockNotHeld, LockUnavailable

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_TTL = 30.0


class RLock:
    """A reentrant lock on `key` for every process that uses the same server.

    It belongs to the running task's execution, elsewhere to this thread of this process: only that may
    enter it again or release it. The lease of `ttl` seconds is renewed until the release, so a dead
    holder's lock is free after `ttl`. One object may be shared by threads.
    """

    def __init__(self, key: str, *, scripts: Scripts, ttl: float = DEFAULT_TTL) -> None:
        self.key = key
        self.ttl = check_ttl(ttl)
        self._name = scripts.name(key)
        self._scripts = scripts

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, or enter it again; False when it was still busy in the end.

        Raises LockUnavailable when Redis does not answer, LockLost when the lock to enter again is lost.
        """
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        execution, lease = self._mine()
        bound = (math.inf if timeout == -1 else timeout) if blocking else 0
        return wait(lambda: execution.enter(lease, self.ttl), self._scripts, execution.owner, bound) is None

    def release(self) -> None:
        """Leave once; the outermost release frees the lock.

        Raises LockNotHeld when this execution does not hold it (any more). A server that cannot be
        reached is logged, and the lease ends the lock.
        """
        execution, lease = self._mine()
        if lease.depth == 0:
            raise LockNotHeld(self.key, str(execution.owner))
        try:
            execution.leave(lease, lease.depth - 1)
        except LockUnavailable as error:
            text = "could not release lock %r, its lease ends it: %s"
            logger.warning(text, self.key, error, extra=lease.described)
        if lease.lost is not None:
            raise LockNotHeld(self.key, str(execution.owner)) from lease.lost

    def locked(self) -> bool:
        """Whether anybody holds it, as Redis says."""
        return self._scripts.locked(self._name)

    def owned(self) -> bool:
        """Whether this execution holds it, as Redis says."""
        execution, lease = self._mine()
        return lease.held and self._scripts.owned(self._name, execution.owner)

    def extend(self, seconds: float | None = None) -> None:
        """Let the lease last at least `seconds` (the ttl) from now. LockNotHeld, LockLost as they apply."""
        execution, lease = self._mine()
        if lease.depth == 0:
            raise LockNotHeld(self.key, str(execution.owner))
        lease.extend(self.ttl if seconds is None else check_ttl(seconds))

    @property
    def owner(self) -> str:
        return str(current_execution().owner)

    @property
    def token(self) -> int:
        """The fencing token of this ownership; 0 when not held."""
        return self._mine()[1].token

    @property
    def depth(self) -> int:
        return self._mine()[1].depth

    @property
    def held(self) -> bool:
        """Whether this execution holds it, by the local deadline: no question to Redis."""
        return self._mine()[1].held

    @property
    def lost(self) -> bool:
        lease = self._mine()[1]
        return lease.depth > 0 and not lease.held

    def ensure(self) -> None:
        """Raise LockLost unless the lock is held."""
        execution, lease = self._mine()
        lease.ensure_not_lost()
        if lease.depth == 0:
            raise LockLost(self.key, str(execution.owner), "it is not held here")

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockNotHeld:
            if error is None:
                raise
            extra = self._mine()[1].described
            logger.warning("lock %r was lost before its block failed", self.key, extra=extra)

    def __repr__(self) -> str:
        return f"<RLock {self.key!r} depth={self.depth}>"

    def _mine(self) -> tuple[Execution, Lease]:
        execution = current_execution()
        return execution, execution.lease(self._scripts, self._name)


def check_ttl(ttl: object) -> float:
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < float("inf"):
        raise ConfigurationError(f"a lock's ttl must be a number of seconds above 0, not {ttl!r}")
    return float(ttl)
