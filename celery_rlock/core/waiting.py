"""Waiting in place for a busy lock: told when it is free, not asking all the time."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from celery_rlock.core.listener import Ears, listener_of
from celery_rlock.core.log import about, logger
from celery_rlock.core.name import Name, Owner
from celery_rlock.core.replies import Busy
from celery_rlock.core.scripts import Scripts
from celery_rlock.errors import LockUnavailable

if TYPE_CHECKING:
    from typing_extensions import Self

Attempt = Callable[[], Busy | None]

_ASK_AGAIN = 2.0
_KEEP_PLACE = 60.0
_TIME_TO_LISTEN = 1.0

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


def wait(attempt: Attempt, scripts: Scripts, owner: Owner, timeout: float) -> Busy | None:
    """Attempt until it is not busy or the time is over; the last answer."""
    end = monotonic() + timeout
    busy = attempt()
    since = busy.since if busy is not None else ""
    while busy is not None and monotonic() < end:
        name = busy.name  # one of several keys, perhaps another one the next time
        with _Turn(scripts, name, owner, since) as turn:
            while busy is not None and busy.name == name and (left := end - monotonic()) > 0:
                turn.wait(left)
                busy = attempt()
            turn.taken = busy is None or busy.name != name
    return busy


def patient(attempt: Attempt, scripts: Scripts) -> Attempt:
    """The same attempt, for which a server that does not answer is as good as a busy lock."""

    def attempt_or_busy() -> Busy | None:
        try:
            return attempt()
        except LockUnavailable as error:
            return Busy(math.inf, f"nobody knows: {error.reason}", scripts.name(error.key))

    return attempt_or_busy


class _Turn:
    """A place among the waiters, for as long as the `with` lasts."""

    def __init__(self, scripts: Scripts, name: Name, owner: Owner, since: str) -> None:
        self.taken = False
        self._scripts = scripts
        self._listener = listener_of(scripts)
        self._about = about(name.key, owner, owner.task_id)
        self._place = self._listener.place(name, owner, since, _KEEP_PLACE)
        self._has_place = False
        self._may_have_come = threading.Event()
        self._ears = Ears(self._has_come, lambda: None, self._may_have_come.set)
        self._pauses = _pauses()

    def __enter__(self) -> Self:
        self._listener.add(self._scripts, self._place, self._ears)
        self._listener.listening.wait(_TIME_TO_LISTEN)
        return self

    def wait(self, longest: float) -> None:
        """Until it may be our turn."""
        end = monotonic() + longest
        self._may_have_come.clear()
        self._listener.add(self._scripts, self._place, self._ears)
        while (left := end - monotonic()) > 0:
            quiet = self._ask()
            if quiet is None:  # then there are only growing pauses between the attempts
                self._may_have_come.wait(min(left, next(self._pauses)))
                return
            if self._may_have_come.wait(min(left, quiet)):
                return

    def _ask(self) -> float | None:
        """For how long nothing happens unless we are told; None when nobody tells us, or nobody knows."""
        if not self._listener.listening.is_set():
            return None
        self._has_place = True
        answer = self._scripts.wait([self._place])[0]
        return None if isinstance(answer, Exception) else min(answer, _ASK_AGAIN)

    def _has_come(self) -> None:
        self._has_place = False
        self._may_have_come.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.discard(self._place)
        if isinstance(error, LockUnavailable) or (self.taken and not self._has_place):
            return
        try:
            self._scripts.give_up(self._place)
        except LockUnavailable as unavailable:
            text = "could not give up the place of %s: %s"
            logger.debug(text, self._place.waiter, unavailable, extra=self._about)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        pause = min(_LONGEST_PAUSE, pause * 1.5)
