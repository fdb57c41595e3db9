"""`lock_busy="replace"`: a newer call of a task ends the older ones, whether they run or wait.

The newer call marks the run that holds its lock in Redis. The run learns it with the next renewal of its
lease and is interrupted. If it goes on all the same, its worker is asked to terminate it. The newer call
waits like any other waiter: the lock itself keeps it from starting before the older run has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from celery import states
from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded, TaskRevokedError

from celery_rlock import signals
from celery_rlock.errors import LockUnavailable, TaskReplaced
from celery_rlock.log import about, logger
from celery_rlock.options.options import Options
from celery_rlock.running.call import Call, Ended
from celery_rlock.running.task_lock import CallLock
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy

#: Seconds between two renewals of a run that may be replaced. With each it learns whether it is.
LOOK_EVERY = 0.5

#: Seconds for which a run may go on after it was told to end, before its worker is asked to terminate it.
TIME_TO_END = 10.0

#: A call looks so often whether the run that it has told to end is gone, beside being woken.
_LOOK_AGAIN = 2.0

_KEEP = 60.0


class Replaced(TaskReplaced, Ended):
    """Interrupts a run that is replaced. The state is stored when the run has ended.

    Celery does not retry a task after an Ignore, whatever its `autoretry_for` says.
    """


def may_be_replaced(options: Options) -> bool:
    """Whether a run listens for calls that replace it."""
    return options.busy == "replace" or callable(options.busy)


def replacement_handler(
    call: Call, lock: CallLock, interrupt: Callable[[BaseException], None] | None
) -> Callable[[str], None]:
    """Returns what ends this run, when it is called with the id of the task that replaces it.

    Without `interrupt` the run goes on until its worker terminates it.
    """

    def on_replaced(by: str) -> None:
        if call.replaced is not None:  # another key has told it
            return
        error = _error(call, call.task_lock.key, by)
        if interrupt is not None:
            call.replaced = error
            interrupt(error)
        _announce(call, error, lock.seconds)

    return on_replaced


@contextmanager
def ended_if_replaced(call: Call) -> Iterator[None]:
    """After the block, a run that was told to end is REVOKED, whatever its code has made of the interruption.

    A run that ends with Retry, or with the Ignore of `self.replace()`, had published a message before.
    """
    try:
        yield
    except Exception as error:
        if call.replaced is None or (isinstance(error, Retry | Ignore) and not isinstance(error, Replaced)):
            raise
    if call.replaced is not None:
        _end(call, call.replaced)


def refuse_when_replaced(call: Call | None) -> None:
    """A run that is replaced ends, and is not retried."""
    if call is not None and call.replaced is not None:
        raise call.replaced


def replace_older(call: Call, options: Options, busy: Busy) -> float | None:
    """Tell the run that holds the lock to end. Ends this call if a newer one waits.

    Returns the seconds after which to look whether that run is gone; None if it is not to end.
    """
    lock = call.lock
    since = (lock.since_header if lock is not None else 0) or busy.since
    try:
        answer = _replace(call, options, busy.redis_keys, busy.owner, since)
    except LockUnavailable as error:
        logger.warning("could not replace %s, trying again later: %s", busy.holder, error.summary)
        return _LOOK_AGAIN
    if not answer.is_told:
        return None
    if answer.heard_for is not None and answer.heard_for >= TIME_TO_END:
        _terminate(call, busy, answer.heard_for)
    return _LOOK_AGAIN


def end_if_newer_call(call: Call, options: Options, lock: CallLock) -> None:
    """End a call that has the lock after it waited, if a newer call waits now or has run since."""
    if options.busy != "replace" or not lock.since_header:
        return
    for lease in lock.leases:
        try:
            _replace(call, options, lease.redis_keys, lease.owner, lock.since_header)
        except LockUnavailable as error:
            logger.debug("could not look for newer calls of %s: %s", call.request.id, error.summary)


def end_redelivery(call: Call, key: str, by: str) -> NoReturn:
    """The task was replaced in another delivery of its message."""
    _end(call, _error(call, key, by))


def store_revoked(call: Call, reason: str) -> None:
    """Store REVOKED. A chord ends in its errback; the rest of a chain ends too."""
    call.task.backend.mark_as_failure(
        call.request.id,
        TaskRevokedError(reason),
        request=call.request,
        store_result=not call.request.ignore_result,
        call_errbacks=False,
        state=states.REVOKED,
    )


def _replace(call: Call, options: Options, redis_keys: RedisKeys, holder: Owner, since: int) -> Any:
    lock: Any = call.lock
    answer = lock.leases[0].lock_server.replace(
        redis_keys,
        holder,
        str(call.task.name),
        call.request.id,
        since,
        options.backoff_max + _KEEP,
        comes_again=bool(call.task.acks_late),
    )
    if answer.newer:
        error = _error(call, redis_keys.key, answer.newer)
        _announce(call, error, 0.0)
        _end(call, error)
    return answer


def _end(call: Call, error: Replaced) -> NoReturn:
    try:
        store_revoked(call, error.summary)
    except SoftTimeLimitExceeded:
        raise
    except Exception as failure:  # noqa: BLE001 - every backend has errors of its own
        extra = about(error.key, call.execution.owner, call.request.id)
        logger.warning("could not store that task %s was replaced: %s", call.request.id, failure, extra=extra)
    raise Replaced(*error.args)


def _error(call: Call, key: str, by: str) -> Replaced:
    return Replaced(key, by, str(call.execution.owner), str(call.task.name))


def _announce(call: Call, error: Replaced, held: float) -> None:
    signals.lock_replaced.send(sender=call.task, error=error, request=call.request, held=held)


def _terminate(call: Call, busy: Busy, seconds: float) -> None:
    """Ask the worker of the run. It refuses if another task has the lock by now."""
    text = "%s still runs %.0f s after it was told to end: task %s[%s] asks its worker to terminate it"
    logger.warning(text, busy.holder, seconds, call.task.name, call.request.id)
    arguments = {
        "owner": busy.holder,
        "task": str(call.task.name),
        "key": busy.redis_keys.key,
        "by": call.request.id,
    }
    try:
        call.task.app.control.broadcast("rlock_end", arguments, destination=[busy.owner.worker])
    except Exception as error:  # noqa: BLE001 - each broker has errors of its own, and some cannot broadcast
        logger.warning("could not ask %s: %r", busy.owner.worker, error)
