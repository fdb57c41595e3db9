"""What happens when the lock cannot be had."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from celery.exceptions import Reject

from celery_rlock import backoff, redelivery, signals
from celery_rlock.call import Call
from celery_rlock.core.replies import Busy
from celery_rlock.errors import ConfigurationError, LockBusy, LockUnavailable
from celery_rlock.logs import tell
from celery_rlock.options import BUSY_ACTIONS, Options
from celery_rlock.skip import skip
from celery_rlock.waiter import (
    BUSY_ATTEMPTS,
    COPY_ATTEMPTS,
    SINCE,
    UNAVAILABLE_ATTEMPTS,
    WAITS_FOR,
    schedule_again,
    waited,
)


def telling_of_the_first_busy(call: Call, attempt: Callable[[], Busy | None]) -> Callable[[], Busy | None]:
    """The same attempt, of a call that waits in place: that it must is told once."""
    told = False

    def attempt_and_tell() -> Busy | None:
        nonlocal told
        busy = attempt()
        if busy is not None and not told:
            told = True
            _tell_busy(call, busy, LockBusy(busy.name.key, busy.holder, busy.lease_left), "wait")
        return busy

    return attempt_and_tell


def on_busy(call: Call, options: Options, busy: Busy) -> NoReturn:
    """End this attempt as `lock_busy` says; a copy of the holder's own message waits, whatever it says."""
    error = LockBusy(busy.name.key, busy.holder, busy.lease_left)
    if redelivery.is_held_by_copy(call, busy):
        text = "Task %s[%s] is delivered again, and waits: %s"
        tell(logging.INFO, text, call.task, call.request, error, key=error.key, owner=call.execution.owner)
        _wait(call, options, busy, error, COPY_ATTEMPTS, store=False)
    action = _busy_action(call, options, error)
    _tell_busy(call, busy, error, action)
    if action == "retry":
        _wait(call, options, busy, error, BUSY_ATTEMPTS)
    if action == "skip":
        skip(call, error)
    if action == "reject":
        raise Reject(error, requeue=False)
    raise error


def on_unavailable(call: Call, options: Options, error: LockUnavailable) -> None:
    """End this attempt as `lock_unavailable` says; returns when the task is to run without the lock."""
    action = options.unavailable
    owner = str(call.execution.owner)
    signals.lock_unavailable.send(
        sender=call.task, error=error, action=action, request=call.request, owner=owner
    )
    if action == "retry" and call.by_message:
        attempts = call.attempts(UNAVAILABLE_ATTEMPTS)
        schedule_again(call, error, backoff.delay(options, attempts), {UNAVAILABLE_ATTEMPTS: attempts + 1})
    if action != "run":
        raise error


def _wait(
    call: Call, options: Options, busy: Busy, error: LockBusy, counter: str, *, store: bool = True
) -> NoReturn:
    """Be scheduled again; the backoff is for the case that nobody wakes the waiter before."""
    attempts = call.attempts(counter)
    since = call.header(SINCE) or busy.since
    headers = {counter: attempts + 1, SINCE: since, WAITS_FOR: busy.name.lock}
    schedule_again(call, error, backoff.delay(options, attempts, busy.lease_left), headers, store=store)


def _busy_action(call: Call, options: Options, busy: LockBusy) -> str:
    if not call.by_message:
        return "fail"  # nothing to schedule again, nobody to tell but the caller
    action = options.busy(call.task, busy) if callable(options.busy) else options.busy
    if action not in BUSY_ACTIONS:
        raise ConfigurationError(f"lock_busy must return one of {', '.join(BUSY_ACTIONS)}, not {action!r}")
    attempts = call.attempts(BUSY_ATTEMPTS) + 1
    if action == "retry" and options.max_attempts is not None and attempts >= options.max_attempts:
        return "fail"
    return action


def _tell_busy(call: Call, busy: Busy, error: LockBusy, action: str) -> None:
    owner, seconds = str(call.execution.owner), waited(call, busy.since)
    signals.lock_busy.send(
        sender=call.task, error=error, action=action, request=call.request, owner=owner, waited=seconds
    )
