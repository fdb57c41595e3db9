"""The one handler that releases a task's lock.

It hears our own signal, sent in the `finally` around `run()`, and `task_postrun` as the second line:
for `lock_until="postrun"`, and for a `finally` that was itself interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import states
from celery.signals import task_postrun

from celery_rlock import redelivery, settings
from celery_rlock.call import Call, call_of
from celery_rlock.core.log import about, logger
from celery_rlock.errors import LockUnavailable
from celery_rlock.hold import Hold
from celery_rlock.publish import free_queued
from celery_rlock.signals import lock_released, run_ended


def release_lock(sender: Any, signal: Any, call: Call | None = None, **fields: Any) -> None:
    if signal is task_postrun:
        stack = getattr(sender, "request_stack", None)
        request = stack.top if stack is not None else None
        call = call_of(request) if request is not None else None
        if call is not None:
            _end(call, fields.get("state"), fields.get("retval"))
        elif request is not None:
            _end_without_run(sender, request, fields.get("state"))
    elif call is not None and call.hold is not None and not call.hold.until_postrun:
        _release(call, call.hold, partial(_leave_early, call, call.hold))


def _leave_early(call: Call, lock: Hold) -> None:
    """Leave at the end of `run()`, unless a copy of the message must learn what task_postrun will know."""
    if redelivery.is_overdue(call):
        lock.announce_copy(call.request.retries)
    lock.leave(early=call.by_message)


def _end(call: Call, state: str | None, result: object) -> None:
    lock = call.hold
    if lock is not None:
        finished = call.by_message and redelivery.has_ended(state, result)
        _release(call, lock, partial(lock.finish, call.request.retries) if finished else lock.leave)
    _release_left_over(call)


def _end_without_run(task: Any, request: Any, state: str | None) -> None:
    """It failed before its `run()`, as in `before_start`: nothing is held but what it took at publish."""
    plan = getattr(task, "_lock_plan", None)
    if plan is None or request.called_directly or state in {None, states.RETRY}:
        return
    plan = plan.for_headers(request.get)
    if plan.options.from_ == "publish":
        scripts = settings.server(task.app)
        names = [scripts.name(key) for key in plan.keys_of(tuple(request.args or ()), request.kwargs or {})]
        free_queued(scripts, names, request.id)


def _release(call: Call, lock: Hold, leave: Callable[[], None]) -> None:
    """Leave the lock if this call is in it. A server that does not answer is left to the lease."""
    if not lock.entered:
        return
    try:
        leave()
    except LockUnavailable as error:
        _could_not_release(call, lock.key, error)
    if not lock.entered:
        lock_released.send(sender=call.task, lock=lock, request=call.request, held=lock.seconds)


def _could_not_release(call: Call, key: str, error: LockUnavailable) -> None:
    owner = call.execution.owner
    extra = about(key, owner, owner.task_id)
    logger.warning("could not release lock %r, its lease ends it: %s", key, error, extra=extra)


def _release_left_over(call: Call) -> None:
    """An `RLock` that the task acquired and never released would be renewed for ever."""
    if not call.by_message:
        return
    for lease in call.execution.leases():
        who = about(lease.name.key, lease.owner, call.request.id)
        logger.warning("task %s never released lock %r", call.task.name, lease.name.key, extra=who)
        try:
            call.execution.leave(lease, 0)
        except LockUnavailable as error:
            _could_not_release(call, lease.name.key, error)


run_ended.connect(release_lock, weak=False, dispatch_uid="celery_rlock.release")
task_postrun.connect(release_lock, weak=False, dispatch_uid="celery_rlock.release")
