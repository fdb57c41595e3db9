"""Releases a task's lock, exactly once, however its run ends.

Two moments call the same release: the `finally` around `run()`, and Celery's `task_postrun`. The second is
for `lock_until="postrun"`, and for a `finally` that was itself interrupted.
"""

from __future__ import annotations

from typing import Any

from celery import states
from celery.exceptions import Retry
from celery.signals import task_postrun

from celery_rlock import settings
from celery_rlock.core.pending_call import give_up_places
from celery_rlock.errors import LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.options.options import Options
from celery_rlock.options.plan import plan_of
from celery_rlock.running import redelivery
from celery_rlock.running.call import Call, call_of, forget_call, headers_of
from celery_rlock.running.reschedule import seconds_until
from celery_rlock.running.task_lock import CallLock
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import QUEUED, RESTING, Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Release, Successor
from celery_rlock.signals import lock_released


def release_after_run(call: Call) -> None:
    """The `finally` around `run()`: release, unless `task_postrun` is to do it."""
    lock = call.lock
    if lock is None or lock.until_postrun:
        return
    # How the task ended is known in task_postrun only. If the message was redelivered, that delivery must
    # learn it, so the lock stays held until then.
    if not redelivery.is_overdue(call):
        _release(call, lock, early=call.by_message)


@task_postrun.connect(weak=False, dispatch_uid="celery_rlock.release")
def release_after_postrun(
    sender: Any = None, state: str | None = None, retval: object = None, **_: Any
) -> None:
    """The task has ended: release what is still held."""
    stack = getattr(sender, "request_stack", None)
    request = stack.top if stack is not None else None
    if request is None:
        return
    call = call_of(request)
    if call is None:
        _free_without_run(sender, request, state)
        return
    forget_call(request)
    if call.lock is not None:
        if redelivery.is_overdue(call) and call.lock.entered:
            # Mark it, so that the release tells how the task ended.
            _ignore_unavailable(call, call.lock.redelivery)
        ended = call.by_message and redelivery.has_ended(state, retval)
        if call.pending is not None and ended and not _comes_again(state, retval):
            call.pending.free()
        _release(call, call.lock, ended=ended)
    _release_left_over(call)
    call.leave_execution()


def _comes_again(state: str | None, result: object) -> bool:
    """Whether the place of a call that has not begun belongs to another message of its task."""
    return state == states.RETRY or isinstance(result, redelivery.Dropped)


def successors_of(
    call: Call, options: Options, lock: CallLock, error: BaseException | None
) -> dict[str, Successor]:
    """What keeps each lock after the run, by the lock's Redis key.

    It is the task's own retry, if the task is unique and takes the same key; or a rest, until the lock was
    held for `lock_hold_at_least`.
    """
    successors = {}
    rest = lock.since + options.hold_at_least - now() if options.hold_at_least else 0.0
    if rest > 0:
        # Redis knows how long one of several places rests, so that it rests also if this process dies.
        whole = (lease.redis_keys.lock for lease in lock.leases if lease.limit == 1)
        successors = {name: Successor(RESTING, rest) for name in whole}
    if isinstance(error, Retry) and options.from_ == "publish" and not options.pending:
        seconds = _lease_of_retry(call, options, error)
        wanted = _locks_of_retry(call, lock, error)
        held = (lease.redis_keys.lock for lease in lock.leases)
        successors |= {name: Successor(QUEUED, seconds) for name in held if name in wanted}
    return successors


def queue_retry(call: Call, options: Options, lock: CallLock, error: BaseException) -> None:
    """With `lock_pending`, the task's own retry is queued among the pending calls, if there is a place."""
    if isinstance(error, Retry) and options.pending and call.pending is not None and call.by_message:
        seconds = _lease_of_retry(call, options, error)
        call.pending.queue_retry(lock, _locks_of_retry(call, lock, error), seconds)


def _lease_of_retry(call: Call, options: Options, error: Retry) -> float:
    return max(0.0, seconds_until(call.task.app, error.when)) + options.queue_ttl


def _locks_of_retry(call: Call, lock: CallLock, error: Retry) -> set[str]:
    """The locks that the retry takes: `self.retry(args=…)` may change them."""
    signature, plan = getattr(error, "sig", None), plan_of(call.task)
    if signature is None or plan is None:
        return {lease.redis_keys.lock for lease in lock.leases}
    try:
        plan, _ = plan.for_call(dict(signature.options))
        keys = plan.redis_keys(lock.leases[0].lock_server, tuple(signature.args), signature.kwargs)
    except Exception:  # noqa: BLE001 - the retry fails with the same error when it runs, and takes no lock
        return set()
    return {redis_keys.lock for redis_keys in keys}


def free_queued(
    lock_server: LockServer, all_keys: list[RedisKeys], task_id: str, *, places: bool = False
) -> None:
    """Free the keys that a task has held since it was published, and no others.

    With `places`, also its places among the pending calls.
    """
    if places:
        give_up_places(lock_server, all_keys, task_id)
    owner = Owner("", QUEUED, task_id)
    for redis_keys in all_keys:
        try:
            lock_server.release(redis_keys, owner, Release())
        except LockUnavailable as error:
            log_failed_release(redis_keys.key, owner, error)


def log_failed_release(key: str, owner: Owner, error: LockUnavailable) -> None:
    extra = about(key, owner, owner.task_id)
    logger.warning("could not release lock %r, it ends with its lease: %s", key, error, extra=extra)


def _release(call: Call, lock: CallLock, *, early: bool = False, ended: bool = False) -> None:
    """Leave the lock if this call is in it. If the server does not answer, the lock ends with its lease."""
    if not lock.entered:
        lock.unwatch()
        return
    republished = redelivery.has_waited(call)
    _ignore_unavailable(call, lambda: lock.leave(early=early, ended=ended, republished=republished))
    if not lock.entered:
        lock.unwatch()
        lock_released.send(sender=call.task, lock=call.task_lock, request=call.request, held=lock.seconds)


def _ignore_unavailable(call: Call, do: Any) -> None:
    try:
        do()
    except LockUnavailable as error:
        log_failed_release(call.task_lock.key, call.execution.owner, error)


def _free_without_run(task: Any, request: Any, state: str | None) -> None:
    """The task failed before `run()`, for example in `before_start`: free what it took at publish."""
    plan = plan_of(task)
    if plan is None or request.called_directly or state in {None, states.RETRY}:
        return
    headers = headers_of(task, request)
    if headers.error is not None:
        return  # its plan, and so its keys, are not known
    plan = plan.for_message(headers)
    if plan.options.from_ == "publish":
        lock_server = settings.server(task.app)
        keys = plan.redis_keys(lock_server, tuple(request.args or ()), request.kwargs or {})
        free_queued(lock_server, keys, request.id, places=bool(plan.options.pending_places))


def _release_left_over(call: Call) -> None:
    """Release any `RLock` that the task acquired and did not release: it would be renewed for ever."""
    if not call.by_message:
        return
    for lease in call.execution.leases():
        who = about(lease.redis_keys.key, lease.owner, call.request.id)
        logger.warning("task %s never released lock %r", call.task.name, lease.redis_keys.key, extra=who)
        try:
            lease.leave(completely=True)
        except LockUnavailable as error:
            log_failed_release(lease.redis_keys.key, lease.owner, error)
