"""Copies: the same message (task id and retry count), delivered again.

A broker delivers again what was not acknowledged in time (Redis: visibility_timeout) or whose connection
broke (RabbitMQ). A copy of a task that runs now waits; when that run ends the copy is dropped, when it
died the copy runs. A message that cannot be a copy is asked nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery import states
from celery.exceptions import Ignore

from celery_rlock.call import Call
from celery_rlock.core.replies import Busy
from celery_rlock.hold import Hold
from celery_rlock.waiter import ATTEMPTS, COPY_ATTEMPTS

if TYPE_CHECKING:
    from celery import Celery

_VISIBILITY_TIMEOUT = 3600.0  # kombu's default
_SHORTEST_WAIT = 0.5


class Dropped(Ignore):
    """Tells the worker that this copy is not needed: its task has ended."""


def is_held_by_copy(call: Call, busy: Busy) -> bool:
    """Whether the lock is held by another delivery of the same task."""
    return call.by_message and busy.task_id == call.request.id


def drop_if_ended(call: Call, hold: Hold) -> None:
    """A copy that has got the lock asks whether its task has ended meanwhile. If not, its own end is told."""
    if _may_be_copy(call) and hold.has_ended(call.request.retries):
        raise Dropped(f"task {call.request.id} has ended in an earlier delivery")


def has_ended(state: str | None, result: object) -> bool:
    """Whether a run that ended so is not to be delivered again: neither terminated nor requeued."""
    if state == states.REJECTED:
        return not getattr(result, "requeue", False)
    return state is not None


def visibility_timeout(app: Celery) -> float:
    """After how long a Redis broker delivers again what is not acknowledged."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout", _VISIBILITY_TIMEOUT))


def _may_be_copy(call: Call) -> bool:
    if not call.by_message:
        return False
    redelivered = (call.request.delivery_info or {}).get("redelivered")
    return bool(redelivered) or _was_scheduled_again(call) or _waited_too_long(call)


def _was_scheduled_again(call: Call) -> bool:
    """A waiter whose worker died between publishing it and acknowledging the message before comes twice."""
    headers = ATTEMPTS if call.task.acks_late else (COPY_ATTEMPTS,)
    return any(call.attempts(header) for header in headers)


def is_overdue(call: Call) -> bool:
    """Whether a run that is not acknowledged yet took so long that its message was delivered again."""
    return call.by_message and bool(call.task.acks_late) and _waited_too_long(call)


def _waited_too_long(call: Call) -> bool:
    """Its worker has had the message for so long that others may have got it too, and only theirs are marked.

    Half of the visibility timeout: kombu's clock starts before ours, and an acknowledgement takes its time.
    """
    waited = time.time() - (call.received or time.time())
    if waited < _SHORTEST_WAIT:
        return False
    return waited >= visibility_timeout(call.task.app) / 2
