"""Tasks that are revoked long before their ETA: Celery itself looks when that has come.

What such a task took when it was published is freed a second after the revocation.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from celery.worker import state

_LOOK_EVERY = 1.0

_scheduled: WeakSet[Any] = WeakSet()
_timers: set[Any] = set()


def watch(request: Any, timer: Any) -> None:
    """Celery has scheduled this request, which has its keys since it was published."""
    _scheduled.add(request)
    if timer not in _timers:
        _timers.add(timer)
        timer.call_after(_LOOK_EVERY, _look, (timer,))


def _look(timer: Any) -> None:
    for request in list(_scheduled):
        if request not in state.scheduled_requests:  # type: ignore[attr-defined]
            _scheduled.discard(request)
        elif request.id in state.revoked:
            _scheduled.discard(request)
            request.free_queued()
    if _scheduled:
        timer.call_after(_LOOK_EVERY, _look, (timer,))
    else:
        _timers.discard(timer)
