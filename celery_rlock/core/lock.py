"""The reentrant lock on any lock server: a `threading.RLock` for a fleet."""

from __future__ import annotations

import _thread
import asyncio
import math
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from celery_rlock.core.execution import Execution, current_execution
from celery_rlock.core.lease import Lease
from celery_rlock.core.waiting import wait
from celery_rlock.errors import ConfigurationError, LockBusy, LockLost, LockNotHeld, LockUnavailable
from celery_rlock.log import logger
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.replies import Busy, Place

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

DEFAULT_TTL = 30.0
LONGEST_TTL = 30 * 24 * 3600.0
#: Each look at a key with a limit looks at all owners that hold it: at so many in less than 10 ms.
MOST_PLACES = 1_000
_GRACE = 0.1


class ReentrantLock:
    """A reentrant lock on `key` for every process that uses the same server.

    In a task the lock belongs to the task's execution, elsewhere to this thread: only that may re-enter or
    release it. The lease of `ttl` seconds is renewed until the release, but not beyond `max_hold` seconds.
    When the holder's host dies, the lock is free after `ttl` seconds. Threads may share one object, also as
    the lock of a `threading.Condition`. With a `limit`, so many owners may hold the lock at once.
    """

    def __init__(
        self,
        key: str,
        *,
        lock_server: LockServer,
        ttl: float = DEFAULT_TTL,
        timeout: float = -1,
        max_hold: float | None = None,
        replicas: int = 0,
        limit: int = 1,
    ) -> None:
        self.key = key
        self.ttl = check_ttl(ttl)
        self.timeout = -1 if timeout == -1 else check_timeout(timeout)
        self.max_hold = None if max_hold is None else check_ttl(max_hold, "max_hold")
        self.limit = check_limit(limit)
        self._replicas = replicas
        self._redis_keys = lock_server.redis_keys(key)
        self._lock_server = lock_server
        self._last: Lease | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, or re-enter it. Returns False if it was still busy in the end.

        Without a timeout, that of the lock counts: by default it waits as long as the lock is busy. Raises
        LockUnavailable if Redis does not answer, LockLost if the lock to re-enter is lost, and
        ConfigurationError inside a running event loop.
        """
        _refuse_event_loop(self.key)
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if not blocking:
            return self._enter(None) is None
        return self._enter(self.timeout if timeout == -1 else check_timeout(timeout)) is None

    def release(self) -> None:
        """Leave the lock once; the outermost release frees it.

        Raises LockNotHeld if this execution does not hold the lock. If the server cannot be reached, this
        logs a warning and the lock ends with its lease.
        """
        execution, lease = self._mine()
        try:
            if not lease.leave():
                raise LockNotHeld(self.key, str(execution.owner))
        except LockUnavailable as error:
            text = "could not release lock %r, it ends with its lease: %s"
            logger.warning(text, self.key, error, extra=lease.log_fields)
        if lease.lost is not None:
            raise LockNotHeld(self.key, str(execution.owner)) from lease.lost

    def locked(self) -> bool:
        """Whether any owner holds the lock. Asks Redis."""
        return self._lock_server.locked(self._redis_keys)

    def owned(self) -> bool:
        """Whether this execution holds the lock. Asks Redis."""
        execution, lease = self._mine()
        return lease.held and self._lock_server.token(self._redis_keys, execution.owner) == lease.token

    def extend(self, seconds: float | None = None) -> None:
        """Make the lease last at least `seconds` (default: the ttl) from now.

        Raises LockNotHeld or LockLost if this execution does not hold the lock.
        """
        execution, lease = self._mine()
        if lease.depth == 0:
            raise LockNotHeld(self.key, str(execution.owner))
        lease.extend(self.ttl if seconds is None else check_ttl(seconds))

    @property
    def owner(self) -> str:
        """This execution's name in Redis: `worker/delivery:task-id`."""
        return str(current_execution().owner)

    @property
    def token(self) -> int:
        """The fencing token of this ownership; 0 if the lock is not held."""
        lease = self._mine()[1]
        return lease.token if lease.depth else 0

    @property
    def slot(self) -> int:
        """Which of the places 0 to limit - 1 this execution has; unique among those who hold the lock now."""
        return self._mine()[1].slot

    @property
    def depth(self) -> int:
        """How many times this execution has entered the lock."""
        return self._mine()[1].depth

    @property
    def held(self) -> bool:
        """Whether this execution holds the lock, by the local deadline. Does not ask Redis."""
        return self._mine()[1].held

    @property
    def lost(self) -> bool:
        """Whether this execution held the lock and does not hold it any more."""
        lease = self._mine()[1]
        return lease.depth > 0 and not lease.held

    def ensure(self) -> None:
        """Raise LockLost unless this execution holds the lock."""
        execution, lease = self._mine()
        lease.ensure_not_lost()
        if lease.depth == 0:
            raise LockLost(self.key, str(execution.owner), "it is not held here")

    def __enter__(self) -> Self:
        _refuse_event_loop(self.key)
        busy = self._enter(self.timeout)
        if busy is not None:
            raise LockBusy(self.key, busy.holder, busy.lease_left, state=busy.owner.state)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockNotHeld:
            if error is None:
                raise
            extra = self._mine()[1].log_fields
            logger.warning("lock %r was lost before its block failed", self.key, extra=extra)

    def __repr__(self) -> str:
        return f"<RLock {self.key!r} depth={self.depth}>"

    # The next three are what `threading.Condition` wants of a reentrant lock.

    def _is_owned(self) -> bool:
        return self.depth > 0

    def _release_save(self) -> int:
        execution, lease = self._mine()
        depth = lease.depth
        if not lease.leave(completely=True):
            raise LockNotHeld(self.key, str(execution.owner))
        return depth

    def _acquire_restore(self, depth: int) -> None:
        for _ in range(depth):
            self._enter(-1)

    def _enter(self, timeout: float | None) -> Busy | None:
        """Go one level deeper within `timeout` seconds; -1: wait as long as it is busy; None: do not wait."""
        execution, lease = self._mine()
        if timeout is None:
            busy = lease.enter(self.ttl, self._replicas, limit=self.limit)
        elif 0 <= timeout < self._lock_server.patience:
            busy = _within(timeout, partial(self._wait, execution, lease, timeout), lease.leave, self.key)
        else:
            busy = self._wait(execution, lease, math.inf if timeout == -1 else timeout)
        if busy is None and self.max_hold is not None and lease.depth == 1:
            lease.renew_until = lease.since + self.max_hold
        return busy

    def _wait(self, execution: Execution, lease: Lease, seconds: float) -> Busy | None:
        def attempt(place: Place | None) -> Busy | None:
            return lease.enter(self.ttl, self._replicas, place, limit=self.limit)

        return wait(attempt, self._lock_server, execution.owner, seconds)

    def _mine(self) -> tuple[Execution, Lease]:
        execution = current_execution()
        # To keep the lease until the next call saves 10 µs: the execution then need not make another one.
        self._last = lease = execution.lease(self._lock_server, self._redis_keys)
        return execution, lease


def check_ttl(seconds: object, name: str = "ttl") -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_TTL:
        raise ConfigurationError(
            f"a lock's {name} must be a number of seconds above 0, at most 30 days, not {seconds!r}"
        )
    return float(seconds)


def check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_PLACES:
        raise ConfigurationError(
            f"a lock's limit must be a whole number from 1 to {MOST_PLACES}, not {limit!r}"
        )
    return limit


def check_timeout(seconds: float) -> float:
    """Raises what `threading.Lock.acquire` raises."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a lock's timeout must be a number of seconds, not {seconds!r}")
    if not seconds >= 0:
        raise ValueError("timeout value must be a non-negative number")
    if seconds > threading.TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")
    return seconds


def _refuse_event_loop(key: str) -> None:
    """Two coroutines of one thread would be one owner, and each call would stop the whole loop."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - exported by asyncio, and needs no exception
        raise ConfigurationError(
            f"lock {key!r} is acquired inside a running event loop, where it would block the loop and "
            "keep no two coroutines apart: use `async with celery_rlock.asyncio.RLock(…)`, or run the whole "
            "block in a thread with asyncio.to_thread"
        )


def _within(
    seconds: float, acquire: Callable[[], Busy | None], leave: Callable[[], object], key: str
) -> Busy | None:
    """Acquire on another thread, because a silent server may take longer than the caller wants to wait.

    If it takes too long, raise LockUnavailable, and leave the lock as soon as it was acquired.
    """
    attempt = _Attempt(acquire, leave)
    try:
        return attempt.answer(seconds, key)
    except BaseException:  # also what a signal handler raises: then no caller knows of the lock
        attempt.give_up()
        raise


class _Attempt:
    """An acquire on a thread of its own. Its caller may give it up at any moment."""

    def __init__(self, acquire: Callable[[], Busy | None], leave: Callable[[], object]) -> None:
        self._acquire, self._leave = acquire, leave
        self._outcomes: list[tuple[Busy | None, BaseException | None]] = []
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._mutex, self._is_given_up = threading.Lock(), False

    def answer(self, seconds: float, key: str) -> Busy | None:
        # `Thread.start` waits at a Condition, which a signal handler that raises can break.
        _thread.start_new_thread(self._run, ())
        with suppress(queue.Empty):
            # A little more than the wait itself needs, so that its own answer comes first.
            self._done.get(timeout=seconds + _GRACE)
        with self._mutex:
            self._is_given_up = not self._outcomes
        if self._is_given_up:
            raise LockUnavailable(key, f"the server did not answer within {seconds:g} s")
        busy, error = self._outcomes[0]
        if error is not None:
            raise error
        return busy

    def give_up(self) -> None:
        with self._mutex:
            self._is_given_up = True
        if self._outcomes == [(None, None)]:
            self._leave()

    def _run(self) -> None:
        outcome: tuple[Busy | None, BaseException | None]
        try:
            outcome = self._acquire(), None
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            outcome = None, error
        with self._mutex:
            if not self._is_given_up:
                self._outcomes.append(outcome)
                self._done.put(None)
                return
        if outcome == (None, None):
            with suppress(LockUnavailable):  # a background job goes on trying to free the lock
                self._leave()
