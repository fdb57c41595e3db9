"""Waits in place for a busy lock: woken by its release instead of polling."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from celery_rlock.errors import LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Busy, Place
from celery_rlock.server.wakeups import WakeCallbacks

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

#: Tries to take the lock. If it is busy, takes the place in line.
Attempt = Callable[[Place | None], Busy | None]

#: Seconds after which a waiter tries by itself, in case a wake-up was lost.
_TRY_AGAIN = 2.0
_KEEP_PLACE = 60.0
_TIME_TO_LISTEN = 1.0

#: Between attempts while no wake-up can arrive.
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


def wait(attempt: Attempt, lock_server: LockServer, owner: Owner, timeout: float) -> Busy | None:
    """Attempt until the lock is not busy or the time is over. Returns the last answer."""
    end = now() + timeout
    busy = attempt(None)
    since = busy.since if busy is not None else 0
    while busy is not None and now() < end:
        redis_keys = busy.redis_keys  # with several keys, the next answer may name another one
        with _InLine(lock_server, busy, owner, since) as line:
            while True:
                busy = attempt(line.place)
                if busy is None or busy.redis_keys != redis_keys:
                    line.got_through = True
                    break
                if now() >= end:
                    break
                line.wait(min(end - now(), busy.lease_left))
    return busy


class _InLine:
    """A place in line, for as long as the `with` block lasts."""

    def __init__(self, lock_server: LockServer, busy: Busy, owner: Owner, since: int) -> None:
        redis_keys = busy.redis_keys
        self.got_through = False
        self._lock_server = lock_server
        self._wakeups = lock_server.wakeups
        self._about = about(redis_keys.key, owner, owner.task_id)
        self.place = self._wakeups.place(redis_keys, owner, since, _KEEP_PLACE, limit=busy.limit)
        # A queue, not an Event: a signal cannot leave it locked for the thread that wakes us.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._callbacks = WakeCallbacks(self._wake_up, lambda: None, self._wake_up)
        self._pauses = _pauses()

    def __enter__(self) -> Self:
        self._wakeups.add(self.place, self._callbacks)
        if not self._wakeups.listening:
            self._sleep(_TIME_TO_LISTEN)  # the new subscription wakes us
        return self

    def wait(self, longest: float) -> None:
        """Return when it may be our turn, or after `longest` seconds at the latest."""
        self._wakeups.add(self.place, self._callbacks)
        pause = _TRY_AGAIN if self._wakeups.listening else next(self._pauses)
        self._sleep(min(longest, pause))

    def _wake_up(self) -> None:
        self._signals.put(None)

    def _sleep(self, seconds: float) -> None:
        with suppress(queue.Empty):
            self._signals.get(timeout=max(0.001, seconds))
        with suppress(queue.Empty):
            while True:
                self._signals.get_nowait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_alone = self._wakeups.discard(self.place, self._callbacks)
        if self.got_through or not is_alone or isinstance(error, LockUnavailable):
            return
        try:
            self._lock_server.give_up(self.place)
        except LockUnavailable as unavailable:
            text = "could not give up the place of %s: %s"
            logger.debug(text, self.place.waiter, unavailable, extra=self._about)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        pause = min(_LONGEST_PAUSE, pause * 1.5)
