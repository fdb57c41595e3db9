"""Publishes a waiting task's message again, to be delivered later."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

from celery import VERSION, Celery
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.utils.quorum_queues import detect_quorum_queues
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.serialization import registry  # type: ignore[attr-defined]

from celery_rlock.errors import LockBusy, LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.options.headers import LockHeaders, delivery_of, write_headers
from celery_rlock.running.call import Call, Ended

#: Whether a worker can start a task before its ETA: from Celery 5.7 on it keeps the timer of such a task.
CAN_BE_WOKEN = VERSION[:2] >= (5, 7)

_LONGEST_PAUSE = 5.0

#: How the headers begin that RabbitMQ adds to a message that has expired in a queue. It drops a message that
#: comes into that queue with them once more.
_DEAD_LETTER_HEADERS = ("x-death", "x-first-death-", "x-last-death-")


def waited(call: Call, until: int) -> float:
    """Seconds since this task first found its lock busy, in this delivery or an earlier one; 0 if it did not.

    Busy answers and tokens carry the server's time in microseconds, because the clocks of workers differ.
    """
    since = (call.lock.since_header or call.lock.found_busy) if call.lock is not None else 0
    if not since:
        return 0.0
    return max(0.0, ((until or since) - since) / 1e6)


class Waiting(Ended):
    """Tells the worker that the task was published again. The state is already stored."""


def schedule_again(
    call: Call,
    reason: LockBusy | LockUnavailable,
    seconds: float,
    headers: LockHeaders,
    *,
    store: bool = True,
) -> NoReturn:
    """Publish the task's message again, to be delivered in `seconds`, and end this attempt.

    The message keeps everything: arguments, serializer, id, retries, routing, expiry, headers, links, chain,
    group and chord. With `store` the state RETRY is stored; a redelivered message must not store it, because
    the running one stores the state.
    """
    request = call.request
    # Store RETRY before publishing: the next delivery may end so soon that RETRY would overwrite its state,
    # as it would if we raised Celery's Retry.
    if store and not request.ignore_result:
        _store_retry(call, reason)
    _publish(call, _signature(call, seconds, replace(headers, retries=request.retries)), reason.key)
    # Monitors show this text. They cut long ones, so the reason comes first.
    raise Waiting(f"waits: {reason.summary}; the next try is within {seconds:.1f} s")


def _signature(call: Call, seconds: float, ours: LockHeaders) -> Any:
    """The message, to be published again."""
    request = call.request
    headers = without_dead_letters(request.headers or {})
    write_headers(headers, ours)
    delay = delayed_by(call.task.app, seconds)
    headers.update(delay.pop("headers", {}))
    delivery = delivery_of(vars(request))
    kept = {
        "serializer": registry.type_to_name.get(delivery.content_type) if delivery is not None else None,
        "compression": request.get("compression"),
        "argsrepr": request.get("argsrepr"),  # the user may have chosen texts that show no secrets
        "kwargsrepr": request.get("kwargsrepr"),
    }
    return call.task.signature_from_request(
        request,
        request.args,
        request.kwargs,
        retries=request.retries,
        headers=headers,
        **delay,
        **{option: value for option, value in kept.items() if value is not None},
    )


def delayed_by(app: Celery, seconds: float) -> dict[str, Any]:
    """The options of `apply_async` with which a worker gets the message and starts it in `seconds`.

    For a quorum queue with a topic exchange Celery has RabbitMQ keep the message until then: in whole seconds
    from 1 on, and where no release can wake its task. As a header, the ETA is the worker's alone.
    """
    if not detect_quorum_queues(app, app.producer_pool.connections.connection.transport.driver_type)[0]:
        return {"countdown": seconds}
    if CAN_BE_WOKEN:
        return {"headers": {"eta": (app.now() + timedelta(seconds=seconds)).isoformat()}}
    return {"countdown": max(1, math.ceil(seconds))}


def without_dead_letters(headers: Mapping[str, Any]) -> dict[str, Any]:
    """These headers of a message without those that RabbitMQ added."""
    return {name: value for name, value in headers.items() if not name.startswith(_DEAD_LETTER_HEADERS)}


def _store_retry(call: Call, reason: LockBusy | LockUnavailable) -> None:
    """Store the state RETRY if that is possible: the task must not be lost with its result backend."""
    try:
        call.task.backend.mark_as_retry(call.request.id, reason, request=call.request)
    except SoftTimeLimitExceeded:
        raise
    except Exception as error:  # noqa: BLE001 - every backend has errors of its own
        logger.warning(
            "could not store that task %s waits: %s",
            call.request.id,
            error,
            extra=about(reason.key, call.execution.owner, call.request.id),
        )


def _publish(call: Call, signature: Any, key: str) -> None:
    """Publish, and never lose the message while the broker is away.

    A message that is not acknowledged yet goes back to the broker. For an acknowledged one, this stays and
    tries again until the broker is back. Any other error fails the task: trying again would not help.
    """
    pause = 0.1
    while True:
        try:
            signature.apply_async()
        except Exception as error:
            if not isinstance(error, _broker_errors(call.task.app)):
                raise
            if call.task.acks_late:
                raise Reject(error, requeue=True) from error
            logger.warning(
                "could not publish task %s again, and keeps trying: %s",
                call.request.id,
                error,
                extra=about(key, call.execution.owner, call.request.id),
            )
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        else:
            return


def _broker_errors(app: Celery) -> tuple[type[BaseException], ...]:
    """What publishing raises while the broker is away or refuses messages for a while."""
    connection = app.producer_pool.connections.connection
    errors = (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors)
    # kombu counts KeyError among those of Redis; here it means that the router knows no such queue.
    return (OperationalError, *(error for error in errors if error is not KeyError))


def seconds_until(app: Celery, when: Any) -> float:
    """Seconds until an ETA or expiry in any form that Celery takes: seconds, a datetime, or ISO 8601."""
    if when is None:
        return 0.0
    if isinstance(when, int | float):
        return float(when)
    moment: Any = when if isinstance(when, datetime) else maybe_iso8601(when)
    return float((maybe_make_aware(moment, app.timezone) - app.now()).total_seconds())
