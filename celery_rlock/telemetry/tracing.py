"""Waiting for a lock and holding it, on the task's OpenTelemetry span.

Nothing is imported: who has a span has imported `opentelemetry.trace` before.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery_rlock import signals

if TYPE_CHECKING:
    from celery_rlock.errors import LockBusy, LockLost, LockUnavailable
    from celery_rlock.hold import Hold

#: The span in which each lock was acquired: its loss is told on another thread, which has no span.
_spans: WeakKeyDictionary[Hold, Any] = WeakKeyDictionary()


def recording_span() -> Any | None:
    """The span that this code runs in, if there is one and somebody wants to see it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span()
    return span if span.is_recording() else None


def _acquired(lock: Hold, waited: float, **_: Any) -> None:
    span = recording_span()
    if span is not None:
        _spans[lock] = span
        fields = {"key": lock.key, "owner": lock.owner, "token": lock.token, "waited": waited}
        span.set_attributes(_named(fields))
        span.add_event("lock acquired", _named(fields))


def _busy(error: LockBusy, action: str, owner: str, waited: float, **_: Any) -> None:
    span = recording_span()
    if span is not None:
        fields = {"key": error.key, "owner": owner, "holder": error.holder, "action": action}
        span.add_event("lock busy", _named({**fields, "waited": waited}))


def _released(lock: Hold, held: float, **_: Any) -> None:
    span = _spans.pop(lock, None)
    if span is not None:
        span.set_attributes(_named({"held": held}))
        span.add_event("lock released", _named({"key": lock.key, "held": held}))


def _lost(lock: Hold, error: LockLost, held: float, **_: Any) -> None:
    span = _spans.get(lock)
    if span is not None:
        span.add_event("lock lost", _named({"key": error.key, "reason": error.reason, "held": held}))


def _unavailable(error: LockUnavailable, action: str, owner: str, **_: Any) -> None:
    span = recording_span()
    if span is not None:
        fields = {"key": error.key, "owner": owner, "action": action, "reason": error.reason}
        span.add_event("lock unavailable", _named(fields))


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    return {f"celery_rlock.{name}": value for name, value in fields.items()}


@cache
def listen() -> None:
    """Hear of locks that are taken and left, too."""
    signals.lock_acquired.connect(_acquired, weak=False, dispatch_uid="celery_rlock.tracing")
    signals.lock_released.connect(_released, weak=False, dispatch_uid="celery_rlock.tracing")


signals.lock_busy.connect(_busy, weak=False, dispatch_uid="celery_rlock.tracing")
signals.lock_lost.connect(_lost, weak=False, dispatch_uid="celery_rlock.tracing")
signals.lock_unavailable.connect(_unavailable, weak=False, dispatch_uid="celery_rlock.tracing")
