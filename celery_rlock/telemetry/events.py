"""Locks on Celery's event bus, for Flower, `celery events` and our exporter.

Sent where the worker sends events of tasks (`-E`) and the task does not say otherwise (`send_events`). The
types are outside of `task-`: monitors would take those for states of the task.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from celery_rlock import signals
from celery_rlock.call import EVENTS
from celery_rlock.event_sender import sender as events

if TYPE_CHECKING:
    from celery_rlock.errors import LockBusy, LockLost, LockUnavailable
    from celery_rlock.hold import Hold

ACQUIRED, BUSY, SKIPPED = "lock-acquired", "lock-busy", "lock-skipped"
RELEASED, LOST, UNAVAILABLE = "lock-released", "lock-lost", "lock-unavailable"

#: The fields of each, beside Celery's own (type, hostname, pid, timestamp, utcoffset, clock, local_received).
FIELDS = {
    ACQUIRED: ("uuid", "name", "key", "owner", "token", "waited"),
    BUSY: ("uuid", "name", "key", "owner", "holder", "action", "waited"),
    SKIPPED: ("uuid", "name", "key", "owner", "holder", "action", "waited"),
    RELEASED: ("uuid", "name", "key", "owner", "token", "held"),
    LOST: ("uuid", "name", "key", "owner", "token", "held", "reason"),
    UNAVAILABLE: ("uuid", "name", "key", "owner", "action", "reason"),
}


def sends_task_events(eventer: Any) -> bool:
    """Whether a worker with this dispatcher sends events of tasks: by `-E`, a setting, or remote control."""
    return bool(eventer and eventer.enabled) and (not eventer.groups or "task" in eventer.groups)


def _acquired(sender: Any, lock: Hold, request: Any, waited: float, **_: Any) -> None:
    if are_wanted(request):
        _send(ACQUIRED, sender, request, **_of(lock), waited=waited)


def _busy(sender: Any, error: LockBusy, request: Any, **fields: Any) -> None:
    if are_wanted(request):
        type_ = SKIPPED if fields["action"] == "skip" else BUSY
        told = {name: fields[name] for name in ("owner", "action", "waited")}
        _send(type_, sender, request, key=error.key, holder=error.holder, **told)


def _released(sender: Any, lock: Hold, request: Any, held: float, **_: Any) -> None:
    if are_wanted(request):
        _send(RELEASED, sender, request, **_of(lock), held=held)


def _lost(sender: Any, lock: Hold, error: LockLost, request: Any, held: float, **_: Any) -> None:
    if are_wanted(request):
        _send(LOST, sender, request, **{**_of(lock), "key": error.key}, held=held, reason=error.reason)


def _unavailable(
    sender: Any, error: LockUnavailable, action: str, request: Any, owner: str, **_: Any
) -> None:
    if are_wanted(request):
        _send(UNAVAILABLE, sender, request, key=error.key, owner=owner, action=action, reason=error.reason)


def are_wanted(request: Any) -> bool:
    """Whether events are sent of the call with this request."""
    return request is not None and bool(request.get(EVENTS))


def _of(lock: Hold) -> dict[str, object]:
    return {"key": lock.key, "owner": lock.owner, "token": lock.token}


def _send(type_: str, task: Any, request: Any, **fields: object) -> None:
    events.send(task.app, request.hostname, type_, {"uuid": request.id, "name": task.name, **fields})


@cache
def listen() -> None:
    """Hear of locks that are taken and left, too."""
    signals.lock_acquired.connect(_acquired, weak=False, dispatch_uid="celery_rlock.events")
    signals.lock_released.connect(_released, weak=False, dispatch_uid="celery_rlock.events")


signals.lock_busy.connect(_busy, weak=False, dispatch_uid="celery_rlock.events")
signals.lock_lost.connect(_lost, weak=False, dispatch_uid="celery_rlock.events")
signals.lock_unavailable.connect(_unavailable, weak=False, dispatch_uid="celery_rlock.events")
