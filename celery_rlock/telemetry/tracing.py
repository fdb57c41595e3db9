"""Waiting for a lock and holding it, on the task's OpenTelemetry span.

This module does not import OpenTelemetry: a process that has a span has imported `opentelemetry.trace`
itself.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from celery_rlock import signals
from celery_rlock.errors import LockBusy, LockLost, LockUnavailable
from celery_rlock.running.task_lock import TaskLock

_UID = "celery_rlock.tracing"

#: The span in which each lock was acquired. A loss is announced on another thread, which has no span.
_spans: WeakKeyDictionary[TaskLock, Any] = WeakKeyDictionary()


def _recording_span() -> Any | None:
    """The current span, if there is one and it records."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span()
    return span if span.is_recording() else None


@signals.lock_acquired.connect(weak=False, dispatch_uid=_UID)
def _on_acquired(lock: TaskLock, waited: float, **_: Any) -> None:
    span = _recording_span()
    if span is not None:
        _spans[lock] = span
        fields = {"key": lock.key, "owner": lock.owner, "token": lock.token, "waited": waited}
        span.set_attributes(_named(fields))
        span.add_event("lock acquired", _named(fields))


@signals.lock_busy.connect(weak=False, dispatch_uid=_UID)
def _on_busy(error: LockBusy, action: str, owner: str, waited: float, **_: Any) -> None:
    span = _recording_span()
    if span is not None:
        fields = {"key": error.key, "owner": owner, "holder": error.holder, "action": action}
        span.add_event("lock busy", _named({**fields, "waited": waited}))


@signals.lock_released.connect(weak=False, dispatch_uid=_UID)
def _on_released(lock: TaskLock, held: float, **_: Any) -> None:
    span = _spans.pop(lock, None)
    if span is not None:
        span.set_attributes(_named({"held": held}))
        span.add_event("lock released", _named({"key": lock.key, "held": held}))


@signals.lock_lost.connect(weak=False, dispatch_uid=_UID)
def _on_lost(lock: TaskLock, error: LockLost, held: float, **_: Any) -> None:
    span = _spans.get(lock)
    if span is not None:
        span.add_event("lock lost", _named({"key": error.key, "reason": error.reason, "held": held}))


@signals.lock_unavailable.connect(weak=False, dispatch_uid=_UID)
def _on_unavailable(error: LockUnavailable, action: str, owner: str, **_: Any) -> None:
    span = _recording_span()
    if span is not None:
        fields = {"key": error.key, "owner": owner, "action": action, "reason": error.reason}
        span.add_event("lock unavailable", _named(fields))


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    return {f"celery_rlock.{name}": value for name, value in fields.items()}
