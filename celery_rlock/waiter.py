"""Scheduling a task again: the same message, later."""

from __future__ import annotations

import logging
import time
from typing import NoReturn

from celery.exceptions import Reject, Retry

from celery_rlock.call import Call
from celery_rlock.errors import RLockError

logger = logging.getLogger("celery_rlock")

_LONGEST_PAUSE = 5.0


def schedule_again(call: Call, reason: RLockError, seconds: float, headers: dict[str, int]) -> NoReturn:
    """Publish the task's message again, to be delivered in `seconds`, and end this attempt.

    Everything is kept: id, retries, routing, expiry, links, chain, group and chord. If the broker cannot
    be reached the message is not lost: one that is not acknowledged yet goes back to the broker, and
    for one that is we stay until the broker is there again.
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
    pause = 0.1
    while True:
        try:
            signature.apply_async()
            break
        except Exception as error:
            if call.task.acks_late:
                raise Reject(error, requeue=True) from error
            logger.warning("could not schedule %s again, trying on: %s", request.id, error)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
    raise Retry(exc=reason, when=seconds, sig=signature)  # type: ignore[arg-type]  # a number is meant
