"""Scheduling a task again: the same message, later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject

from celery_rlock.call import Call
from celery_rlock.core.log import about, logger
from celery_rlock.errors import RLockError

#: Headers of the message that count how often its task was scheduled again, and why.
BUSY_ATTEMPTS = "rlock_attempts"
UNAVAILABLE_ATTEMPTS = "rlock_unavailable"
COPY_ATTEMPTS = "rlock_copy"
ATTEMPTS = (BUSY_ATTEMPTS, UNAVAILABLE_ATTEMPTS, COPY_ATTEMPTS)

#: Header: when its task found the lock busy first, by the server's clock; its place among the waiters.
SINCE = "rlock_since"

#: Header: the lock that it waits for, as it is called in Redis.
WAITS_FOR = "rlock_waits_for"

#: What a waiter carries, and its run does not.
WAITER_HEADERS = (*ATTEMPTS, SINCE, WAITS_FOR)

_LONGEST_PAUSE = 5.0


def is_waiter(headers: Mapping[str, Any]) -> bool:
    """Whether a message with these headers is one that was scheduled again."""
    return any(headers.get(header) for header in ATTEMPTS)


def waited(call: Call, until: int | str) -> float:
    """Seconds since this task found its lock busy first, in this delivery or before; 0 when it did not.

    By the server's clock in microseconds, which busy answers and tokens tell: clocks of workers differ.
    """
    since = call.header(SINCE) or (call.hold.found_busy if call.hold is not None else "")
    if not since:
        return 0.0
    return max(0.0, (int(until or since) - int(since)) / 1e6)


class Waiting(Ignore):
    """Tells the worker that the task is scheduled again; its state is already stored."""


def schedule_again(
    call: Call, reason: RLockError, seconds: float, headers: dict[str, object], *, store: bool = True
) -> NoReturn:
    """Publish the task's message again, to be delivered in `seconds`, and end this attempt.

    Everything is kept: id, retries, routing, expiry, links, chain, group and chord. The state RETRY is stored
    unless somebody else, who is to store the task's state, holds the lock.
    """
    request = call.request
    signature = call.task.signature_from_request(
        request,
        call.args,
        call.kwargs,
        countdown=seconds,
        retries=request.retries,
        headers={**(request.headers or {}), **headers},
    )
    # Stored first: the next delivery may have ended before we come to store anything (as raising
    # Celery's Retry would), and RETRY must not overwrite how it ended.
    if store and not request.ignore_result:
        call.task.backend.mark_as_retry(request.id, reason, request=request)
    _publish(call, signature)
    raise Waiting(f"again in {seconds:.3f} s: {reason}")


def _publish(call: Call, signature: Any) -> None:
    """If the broker cannot be reached the message is not lost: one that is not acknowledged yet goes back to
    the broker, and for one that is we stay until the broker is there again.
    """
    pause = 0.1
    while True:
        try:
            signature.apply_async()
        except Exception as error:
            if call.task.acks_late:
                raise Reject(error, requeue=True) from error
            who = about(
                str(signature.options["headers"].get(WAITS_FOR)), call.execution.owner, call.request.id
            )
            logger.warning("could not schedule %s again, trying on: %s", call.request.id, error, extra=who)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        else:
            return
