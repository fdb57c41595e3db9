"""What happens when the lock cannot be taken: retry with backoff, skip, fail or reject."""

from __future__ import annotations

import logging
import random
from typing import NoReturn, cast

from celery.exceptions import Reject

from celery_rlock import signals
from celery_rlock.core.waiting import Attempt
from celery_rlock.errors import ConfigurationError, LockBusy, LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.options.headers import Counter, sealed
from celery_rlock.options.options import Options
from celery_rlock.options.validation import BUSY_ACTIONS
from celery_rlock.running import redelivery
from celery_rlock.running.call import Call, Ended
from celery_rlock.running.pending_place import superseded_text
from celery_rlock.running.replaced import replace_older, store_revoked
from celery_rlock.running.reschedule import CAN_BE_WOKEN, schedule_again, waited
from celery_rlock.running.task_lock import CallLock
from celery_rlock.server.replies import Busy, Place

#: A waiter looks again so many seconds after the holder's lease: by then the lock is free or renewed.
_AFTER_LEASE = 0.05


class Skipped(Ended):
    """Tells the worker that the task was skipped. The state is already stored."""


class Superseded(Skipped):
    """Tells the worker that a later call has taken the place of this one. The state is already stored."""


def announcing_the_first_busy(call: Call, attempt: Attempt) -> Attempt:
    """The same attempt, for a call that waits in place: it sends the signal `lock_busy` once."""
    announced = False

    def attempt_and_announce(place: Place | None) -> Busy | None:
        nonlocal announced
        busy = attempt(place)
        if busy is not None and not announced:
            announced = True
            _announce(call, busy, _error_of(call, busy), "wait")
        return busy

    return attempt_and_announce


def on_busy(call: Call, options: Options, busy: Busy) -> NoReturn:
    """End this attempt as `lock_busy` says. Another message of the holder's own task always waits."""
    error = _error_of(call, busy)
    if redelivery.is_held_by_other_delivery(call, busy):
        logger.log(
            logging.INFO,
            "Task %s[%s] was redelivered while it runs, and waits for that run: %s",
            call.task.name,
            call.request.id,
            error.summary,
            extra=about(error.key, call.execution.owner, call.request.id),
        )
        _wait(call, options, busy, error, "redelivery_attempts", store=False)
    if redelivery.is_held_by_predecessor(call, busy):
        _wait(call, options, busy, error, "busy_attempts")
    action = _action(call, options, error)
    look_again = replace_older(call, options, busy) if action == "replace" else None
    _announce(call, busy, error, action)
    if action == "replace":
        _wait(call, options, busy, error, "busy_attempts", look_again=look_again)
    if action == "retry":
        # Another delivery of a redelivered message may be about to store how the task ended.
        _wait(call, options, busy, error, "busy_attempts", store=not redelivery.is_redelivery(call))
    if action == "skip":
        _skip(call, error)
    if action == "reject":
        raise Reject(error, requeue=False)
    raise error


def end_if_superseded(call: Call, later: str) -> None:
    """End this attempt if the call with the id `later` has taken the place of this one."""
    if later:
        reason = superseded_text(later)
        extra = about(call.task_lock.key, call.execution.owner, call.request.id)
        logger.info("Task %s[%s] does not run: %s", call.task.name, call.request.id, reason, extra=extra)
        store_revoked(call, reason)
        raise Superseded(reason)


def on_unavailable(call: Call, options: Options, error: LockUnavailable) -> None:
    """End this attempt as `lock_unavailable` says. Returns if the task is to run without the lock."""
    error = error.of(str(call.task.name))
    action = options.unavailable
    owner = str(call.execution.owner)
    signals.lock_unavailable.send(
        sender=call.task, error=error, action=action, request=call.request, owner=owner
    )
    if action == "retry" and call.by_message:
        attempts = call.headers.unavailable_attempts
        headers = call.headers.counted("unavailable_attempts", attempts + 1)
        # The task may have ended in another delivery, which stored its state.
        store = not redelivery.is_redelivery(call) and not redelivery.was_republished(call)
        schedule_again(call, error, backoff(options, attempts), headers, store=store)
    if action != "run":
        raise error


def backoff(options: Options, attempt: int, lease_left: float | None = None) -> float:
    """Seconds until the next attempt (the first is 0): exponential, capped, with full jitter."""
    longest = min(options.backoff_max, options.backoff * 2 ** min(attempt, 50))
    chosen = random.uniform(0, longest) if options.jitter else longest  # noqa: S311 - jitter, not a secret
    return chosen if lease_left is None else min(chosen, lease_left + _AFTER_LEASE)


def _wait(
    call: Call,
    options: Options,
    busy: Busy,
    error: LockBusy,
    counter: Counter,
    *,
    store: bool = True,
    look_again: float | None = None,
) -> NoReturn:
    """Publish the task again. The backoff is the safety net for a wake-up that does not come.

    With `look_again` the holder is about to end, and the next attempt is at most so many seconds away.
    """
    lock = cast("CallLock", call.lock)  # it was found busy
    attempts = call.headers.count(counter)
    headers = call.headers.counted(
        counter, attempts + 1, since=lock.since_header or busy.since, waits_for=busy.redis_keys.lock
    )
    headers = redelivery.before_publishing_again(call, headers)
    all_keys = [lease.redis_keys for lease in lock.leases]
    headers = sealed(headers, lock.leases[0].lock_server, call.request.id, all_keys)
    pause = backoff(options, attempts, busy.lease_left)
    if look_again is not None:
        pause = look_again if CAN_BE_WOKEN else min(pause, look_again)
    schedule_again(call, error, pause, headers, store=store)


def _action(call: Call, options: Options, busy: LockBusy) -> str:
    if not call.by_message:
        return "fail"  # there is no message to publish again
    action = options.busy(call.task, busy) if callable(options.busy) else options.busy
    if action not in BUSY_ACTIONS:
        wanted = ", ".join(BUSY_ACTIONS)
        raise ConfigurationError(
            f"lock_busy of task {call.task.name} must return one of {wanted}, not {action!r}"
        )
    if action == "replace":
        options.check_replace(str(call.task.name))
        if call.request.retries or redelivery.is_redelivery(call):
            action = "retry"  # it may be older than the run that it finds
    attempts = call.headers.busy_attempts + 1
    if (
        action in {"retry", "replace"}
        and options.max_attempts is not None
        and attempts >= options.max_attempts
    ):
        return "fail"
    return action


def _skip(call: Call, busy: LockBusy) -> NoReturn:
    """Store REVOKED with the holder's name. A chord ends in its errback; the rest of a chain ends too."""
    reason = f"skipped: {busy.summary}"
    store_revoked(call, reason)
    raise Skipped(reason)


def _error_of(call: Call, busy: Busy) -> LockBusy:
    task, state = str(call.task.name), busy.owner.state
    return LockBusy(busy.redis_keys.key, busy.holder, busy.lease_left, task, state)


def _announce(call: Call, busy: Busy, error: LockBusy, action: str) -> None:
    signals.lock_busy.send(
        sender=call.task,
        error=error,
        action=action,
        request=call.request,
        owner=str(call.execution.owner),
        waited=waited(call, busy.since),
    )
