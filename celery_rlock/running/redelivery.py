"""Redelivered messages: the same task id, retry count and number of replacements, delivered again.

A broker redelivers what was not acknowledged in time (Redis: visibility_timeout) or whose connection broke
(RabbitMQ). While the first delivery runs, the second waits. When that run ends, the second is dropped; when
it died, the second runs. A message that cannot be a redelivery costs no extra command.

A waiting task is published again before its message is acknowledged. If its worker dies in between, there are
two messages, and only the first comes back marked as redelivered. So with `acks_late` each delivery that
publishes its message again notes that in Redis, until it is acknowledged. And a message that is published
again after a redelivery says so, because the broker does not mark it.
"""

from __future__ import annotations

import time

from celery import Celery, states

from celery_rlock.errors import LockUnavailable
from celery_rlock.options.headers import LockHeaders
from celery_rlock.running.call import Call, Ended
from celery_rlock.running.replaced import end_redelivery
from celery_rlock.running.reschedule import Waiting
from celery_rlock.running.task_lock import CallLock
from celery_rlock.server.replies import Busy, RedeliveryReply

_VISIBILITY_TIMEOUT = 3600.0  # kombu's default
_SHORTEST_WAIT = 0.5


class Dropped(Ended):
    """Tells the worker that this delivery is not needed: its task has ended."""


def is_held_by_other_delivery(call: Call, busy: Busy) -> bool:
    """Whether another delivery of the same message holds the lock."""
    return call.by_message and busy.owner.message == call.execution.owner.message


def is_held_by_predecessor(call: Call, busy: Busy) -> bool:
    """Whether the run that published this retry or replacement of its task has not released the lock yet."""
    return call.by_message and busy.owner.task_id == call.request.id


def drop_if_ended(call: Call, lock: CallLock) -> None:
    """Drop a message whose task has ended in another delivery, whether this one got the lock or not."""
    redelivered = is_redelivery(call)
    if not redelivered and not has_waited(call):
        return
    reply = lock.redelivery(mark=redelivered)
    if isinstance(reply, str):
        end_redelivery(call, lock.leases[0].redis_keys.key, reply)
    if reply == RedeliveryReply.ENDED:
        raise Dropped(f"task {call.request.id} has ended in an earlier delivery")


def before_publishing_again(call: Call, headers: LockHeaders) -> LockHeaders:
    """Note that there are two messages until this delivery is acknowledged. Returns the new one's headers."""
    if call.lock is None:
        return headers
    redelivered = is_redelivery(call)
    if call.task.acks_late:
        try:
            call.lock.mark_unacked(redelivered=redelivered)
        except LockUnavailable:
            redelivered = True  # without the note, the new message must be as careful as a redelivered one
    return (
        headers.counted("redelivery_attempts", headers.redelivery_attempts or 1) if redelivered else headers
    )


def has_ended(state: str | None, result: object) -> bool:
    """Whether a run with this state has ended for good: its message was not requeued or published again."""
    if isinstance(result, Waiting):
        return False
    if state == states.REJECTED:
        return not getattr(result, "requeue", False)
    return state is not None


def visibility_timeout(app: Celery) -> float:
    """After how many seconds a Redis broker redelivers what is not acknowledged."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout", _VISIBILITY_TIMEOUT))


def is_overdue(call: Call) -> bool:
    """Whether a run that is not acknowledged took so long that its message may have been redelivered."""
    return call.by_message and bool(call.task.acks_late) and _held_too_long(call)


def is_redelivery(call: Call) -> bool:
    """Whether the call must expect other deliveries of its message."""
    if not call.by_message:
        return False
    if (call.request.delivery_info or {}).get("redelivered") or call.headers.redelivery_attempts:
        return True
    # While the lock server did not answer, an earlier delivery could not note that it was not acknowledged.
    if call.task.acks_late and call.headers.unavailable_attempts:
        return True
    return _held_too_long(call)


def was_republished(call: Call) -> bool:
    """Whether an earlier delivery published this message and may not be acknowledged: Redis knows."""
    return call.by_message and bool(call.task.acks_late) and call.headers.busy_attempts > 0


def has_waited(call: Call) -> bool:
    """Whether a worker has kept this message, or one before it, unacknowledged while the task waited.

    The broker may have redelivered such a message, and the worker that got it has told Redis.
    """
    return was_republished(call) or (call.by_message and bool(call.task.acks_late) and call.headers.since > 0)


def _held_too_long(call: Call) -> bool:
    """Held so long that the broker may have redelivered it; only the new delivery carries the flag.

    Half of the visibility timeout: kombu's clock starts before ours, and an acknowledgement takes time.
    """
    waited = time.time() - (call.received or time.time())
    if waited < _SHORTEST_WAIT:
        return False
    return waited >= visibility_timeout(call.task.app) / 2
