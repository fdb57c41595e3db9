"""Waiting in place for a busy lock, without keeping the server busy."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from time import monotonic

from celery_rlock.core.scripts import Busy
from celery_rlock.errors import LockUnavailable

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


def wait(attempt: Callable[[], Busy | None], timeout: float) -> Busy | None:
    """Attempt until it is not busy or the time is over; the last answer."""
    end = monotonic() + timeout
    pauses = _pauses()
    while (busy := attempt()) is not None:
        left = end - monotonic()
        if left <= 0:
            break
        # Past the holder's lease the lock may be free: look then at the latest.
        time.sleep(min(next(pauses), busy.lease_left + 0.001, left))
    return busy


def patient(attempt: Callable[[], Busy | None]) -> Callable[[], Busy | None]:
    """The same attempt, for which a server that does not answer is as good as a busy lock."""

    def attempt_or_busy() -> Busy | None:
        try:
            return attempt()
        except LockUnavailable as error:
            return Busy(math.inf, f"nobody knows: {error.reason}")

    return attempt_or_busy


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        pause = min(_LONGEST_PAUSE, pause * 1.5)
