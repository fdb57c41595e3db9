"""The reentrant lock for coroutines on any lock server."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from celery_rlock.aio.async_lease import AsyncLease, TaskOwner, current_owner
from celery_rlock.aio.async_server import AsyncLockServer
from celery_rlock.core.execution import inherited_execution
from celery_rlock.core.lock import DEFAULT_TTL, check_limit, check_timeout, check_ttl
from celery_rlock.errors import ConfigurationError, LockBusy, LockLost, LockNotHeld, LockUnavailable
from celery_rlock.log import logger
from celery_rlock.server.clock import now
from celery_rlock.server.replies import Busy
from celery_rlock.server.wakeups import WakeCallbacks

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit  # type: ignore[import-not-found]  # redis-py needs it too

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

#: As in core/waiting.py.
_TRY_AGAIN, _KEEP_PLACE, _TIME_TO_LISTEN = 2.0, 60.0, 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

#: A little more than the wait itself needs, so that its own answer comes first.
_GRACE = 0.1
_TIME_TO_ANSWER = 0.5


class AsyncReentrantLock:
    """A reentrant lock on `key` for every process that uses the same server, owned by the asyncio task."""

    def __init__(
        self,
        key: str,
        *,
        lock_server: Callable[[], AsyncLockServer],
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        max_hold: float | None = None,
        replicas: int = 0,
        limit: int = 1,
    ) -> None:
        self.key = key
        self.ttl = check_ttl(ttl)
        self.timeout = _check_timeout(timeout)
        self.max_hold = None if max_hold is None else check_ttl(max_hold, "max_hold")
        self.limit = check_limit(limit)
        self._replicas = replicas
        self._lock_server = lock_server

    async def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, or re-enter it. Returns False if it was still busy after `timeout` seconds.

        Without a timeout, that of the lock counts: by default it waits as long as the lock is busy. With 0 it
        does not wait. Raises LockUnavailable if Redis does not answer in time, and LockLost if the lock to
        re-enter is lost. If the task is cancelled meanwhile, it does not get the lock, and gives up its place
        in line.
        """
        return await self._enter(self.timeout if timeout is None else _check_timeout(timeout)) is None

    async def release(self) -> None:
        """Leave the lock once; the outermost release frees it.

        Raises LockNotHeld if this task does not hold the lock. If the server cannot be reached, this logs a
        warning, goes on trying in the background, and the lock ends with its lease at the latest.
        """
        task_owner, lease = self._mine()
        try:
            if not await lease.leave():
                raise LockNotHeld(self.key, str(task_owner.owner))
        except LockUnavailable as error:
            text = "could not release lock %r, it ends with its lease: %s"
            logger.warning(text, self.key, error, extra=lease.log_fields)
        if lease.lost is not None:
            raise LockNotHeld(self.key, str(task_owner.owner)) from lease.lost

    async def locked(self) -> bool:
        """Whether any owner holds the lock. Asks Redis."""
        lock_server = self._lock_server()
        return await lock_server.loop.uninterrupted(
            self.key, lock_server.locked(lock_server.redis_keys(self.key))
        )

    async def owned(self) -> bool:
        """Whether this task holds the lock. Asks Redis."""
        lock_server = self._lock_server()
        task_owner, lease = self._mine(lock_server)
        if not lease.held:
            return False
        request = lock_server.token(lease.redis_keys, task_owner.owner)
        return await lock_server.loop.uninterrupted(self.key, request) == lease.token

    async def extend(self, seconds: float | None = None) -> None:
        """Make the lease last at least `seconds` (default: the ttl) from now.

        Raises LockNotHeld or LockLost if this task does not hold the lock.
        """
        task_owner, lease = self._mine()
        if lease.depth == 0:
            raise LockNotHeld(self.key, str(task_owner.owner))
        await lease.extend(self.ttl if seconds is None else check_ttl(seconds))

    @property
    def owner(self) -> str:
        """This task's name in Redis: `pid@host/asyncio:nonce-name`."""
        return str(self._mine()[0].owner)

    @property
    def token(self) -> int:
        """The fencing token of this ownership; 0 if the lock is not held."""
        lease = self._mine()[1]
        return lease.token if lease.depth else 0

    @property
    def slot(self) -> int:
        """Which of the places 0 to limit - 1 this task has; unique among those who hold the lock now."""
        return self._mine()[1].slot

    @property
    def depth(self) -> int:
        """How many times this task has entered the lock."""
        return self._mine()[1].depth

    @property
    def held(self) -> bool:
        """Whether this task holds the lock, by the local deadline. Does not ask Redis."""
        return self._mine()[1].held

    @property
    def lost(self) -> bool:
        """Whether this task held the lock and does not hold it any more."""
        lease = self._mine()[1]
        return lease.depth > 0 and not lease.held

    def ensure(self) -> None:
        """Raise LockLost unless this task holds the lock, by the local deadline. Does not ask Redis."""
        task_owner, lease = self._mine()
        lease.ensure_not_lost()
        if lease.depth == 0:
            raise LockLost(self.key, str(task_owner.owner), "it is not held here")

    async def __aenter__(self) -> Self:
        busy = await self._enter(self.timeout)
        if busy is not None:
            raise LockBusy(self.key, busy.holder, busy.lease_left, state=busy.owner.state)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockNotHeld:
            if error is None:
                raise
            extra = self._mine()[1].log_fields
            logger.warning("lock %r was lost before its block failed", self.key, extra=extra)

    def __repr__(self) -> str:
        return f"<asyncio RLock {self.key!r}>"

    def _mine(self, lock_server: AsyncLockServer | None = None) -> tuple[TaskOwner, AsyncLease]:
        lock_server = lock_server or self._lock_server()
        task_owner = current_owner(lock_server.loop)
        return task_owner, task_owner.lease(lock_server, lock_server.redis_keys(self.key))

    async def _enter(self, timeout: float | None) -> Busy | None:
        """Go one level deeper within `timeout` seconds; None: wait as long as it is busy."""
        lock_server = self._lock_server()
        if timeout is None or timeout >= lock_server.patience:
            busy = await self._wait(lock_server, math.inf if timeout is None else timeout)
        else:
            # Without a wait, the answer itself may take a moment.
            limit = (timeout or min(_TIME_TO_ANSWER, lock_server.patience)) + _GRACE
            try:
                async with time_limit(limit):
                    busy = await self._wait(lock_server, timeout)
            except asyncio.TimeoutError:
                raise LockUnavailable(self.key, f"the server did not answer within {limit:g} s") from None
        lease = self._mine(lock_server)[1]
        if busy is None and self.max_hold is not None and lease.depth == 1:
            lease.renew_until = lease.since + self.max_hold
        return busy

    async def _wait(self, lock_server: AsyncLockServer, seconds: float) -> Busy | None:
        end = now() + seconds
        lease = await current_owner(lock_server.loop).find_lease(
            lock_server, lock_server.redis_keys(self.key)
        )
        busy = await lease.enter(self.ttl, self._replicas, None, limit=self.limit)
        if busy is None:
            return None
        self._refuse_to_wait_for_itself(busy)
        if now() >= end:
            return busy
        async with _AsyncInLine(lock_server, lease, busy) as line:
            while True:
                busy = await lease.enter(self.ttl, self._replicas, line.place, limit=self.limit)
                if busy is None:
                    line.got_through = True
                    return None
                if now() >= end:
                    return busy
                await line.wait(min(end - now(), busy.lease_left))

    def _refuse_to_wait_for_itself(self, busy: Busy) -> None:
        execution = inherited_execution()
        if execution is not None and execution.owner.field == busy.owner.field:
            raise ConfigurationError(
                f"lock {self.key!r} is held by {busy.holder}, which runs this coroutine and would wait for "
                "it for ever: its coroutines are inside the lock already; use an asyncio.Lock, or another "
                "key, to keep them apart"
            )


class _AsyncInLine:
    """A place in line, for as long as the `async with` block lasts."""

    def __init__(self, lock_server: AsyncLockServer, lease: AsyncLease, busy: Busy) -> None:
        self.got_through = False
        self._lock_server, self._lease, self._wakeups = lock_server, lease, lock_server.wakeups
        self.place = self._wakeups.place(
            lease.redis_keys, lease.owner, busy.since, _KEEP_PLACE, limit=busy.limit
        )
        self._is_turn = asyncio.Event()
        self._callbacks = WakeCallbacks(self._is_turn.set, lambda: None, self._is_turn.set)
        self._pauses = _pauses()

    async def __aenter__(self) -> Self:
        self._wakeups.add(self.place, self._callbacks)
        if not self._wakeups.listening:
            try:
                await self._sleep(_TIME_TO_LISTEN)  # the new subscription wakes us
            except BaseException:
                self._wakeups.discard(self.place, self._callbacks)
                raise
        return self

    async def wait(self, longest: float) -> None:
        """Return when it may be our turn, or after `longest` seconds at the latest."""
        self._wakeups.add(self.place, self._callbacks)
        pause = _TRY_AGAIN if self._wakeups.listening else next(self._pauses)
        await self._sleep(min(longest, pause))

    async def _sleep(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(max(0.001, seconds), self._is_turn.set)
        try:
            await self._is_turn.wait()
        finally:
            timer.cancel()
        self._is_turn.clear()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the place up in the background: a cancelled task does not wait for it."""
        self._wakeups.discard(self.place, self._callbacks)
        if not self.got_through:
            self._lease.after_request(self._give_up)

    def _give_up(self) -> None:
        lock_server, place = self._lock_server, self.place
        lock_server.loop.do_later(
            f"give up the place of {place.waiter}",
            lambda: lock_server.give_up(place),
            give_up=now() + lock_server.patience,
        )


def _check_timeout(timeout: float | None) -> float | None:
    return None if timeout in {None, math.inf} else check_timeout(timeout)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        pause = min(_LONGEST_PAUSE, pause * 1.5)
