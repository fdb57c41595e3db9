"""Telling that a running task has lost its lock, and acting on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from celery_rlock import signals
from celery_rlock.hold import Hold
from celery_rlock.interrupt import interruptible

if TYPE_CHECKING:
    from celery_rlock.call import Call
    from celery_rlock.errors import LockLost
    from celery_rlock.options import Options


@contextmanager
def watched(call: Call, hold: Hold, options: Options) -> Iterator[None]:
    """Inside, the loss of the lock is told as `lock_lost` says."""
    aborting = interruptible() if options.lost == "abort" else nullcontext(None)
    with aborting as abort, hold.watched(_teller(call, hold, options, abort)):
        yield


def _teller(
    call: Call, hold: Hold, options: Options, abort: Callable[[BaseException], None] | None
) -> Callable[[LockLost], None]:
    def tell(error: LockLost) -> None:
        signals.lock_lost.send(
            sender=call.task, lock=hold, error=error, request=call.request, held=hold.seconds
        )
        if abort is not None:
            abort(error)
        elif callable(options.lost):
            options.lost(call.task, error)

    return tell
