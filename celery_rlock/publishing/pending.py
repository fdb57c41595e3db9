"""`lock_pending` and `lock_duplicate="replace"`: calls that are queued behind the running one."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.backends.rpc import RPCBackend
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_rlock import settings, signals
from celery_rlock.core.pending_call import PendingCall
from celery_rlock.errors import LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.options.options import Options
from celery_rlock.options.plan import Plan
from celery_rlock.publishing.message import (
    Message,
    Publish,
    as_received,
    existing_result,
    is_duplicate,
    is_in_canvas,
    process_name,
    publish_all_the_same,
    publisher_name,
    queue_lease,
    run_by,
)
from celery_rlock.running.pending_place import superseded_text
from celery_rlock.running.releasing import free_queued
from celery_rlock.running.reschedule import seconds_until
from celery_rlock.server.owner import EAGER, QUEUED, Owner, new_delivery
from celery_rlock.server.replies import Busy, PendingRequest


def publish_pending(task: Any, plan: Plan, message: Message, publish: Publish) -> AsyncResult[Any]:
    """With `lock_pending` or `lock_duplicate="replace"`: reserve a place, publish, and be queued in it.

    A call of which one key is busy for another reason is published without a place. So is a member
    of a canvas if there is no place, and no later call takes its place.
    """
    options, lock_server = plan.options, settings.server(task.app)
    lease = queue_lease(task, options, {"expires": task.expires, **message.options})
    all_keys = plan.redis_keys(lock_server, *as_received(task, message))
    call = PendingCall(lock_server, all_keys, _pending_request(task, options, message))
    busy: list[Busy] = []
    try:
        busy = call.reserve()
    except LockUnavailable as error:
        publish_all_the_same(task, options, message, error)
    if len(busy) == len(all_keys) and is_duplicate(task, message, busy):
        return existing_result(task, options, busy[0])
    if call.postponable is not None:
        message = _postponed_at_most(task, message, call.postponable)
        lease = queue_lease(task, options, {"expires": task.expires, **message.options})
    try:
        if task.app.conf.task_always_eager:
            return run_by(Owner(process_name(), EAGER + new_delivery(), message.task_id), publish)(message)
        result = publish(message)
    except BaseException:
        call.withdraw()
        raise
    finally:
        if task.app.conf.task_always_eager:  # the run is over, also if it did not begin or comes again
            free_queued(lock_server, all_keys, message.task_id, places=True)
    if call.is_reserved:
        _queue(task, call, message, lease)
    return result


def _pending_request(task: Any, options: Options, message: Message) -> PendingRequest:
    is_kept = is_in_canvas(message)
    delay = seconds_until(task.app, message.options.get("countdown") or message.options.get("eta"))
    return PendingRequest(
        message.task_id,
        new_delivery(),
        publisher_name(),
        str(task.name),
        options.pending_places,
        replace=options.duplicate == "replace" and not is_kept,
        alone=not options.pending and options.until != "start",
        kept=is_kept,
        postpone=max(delay, options.queue_ttl),
    )


def _postponed_at_most(task: Any, message: Message, seconds: float) -> Message:
    """The message with an ETA of so many seconds at most, so that a stream of calls runs now and then."""
    options = dict(message.options)
    if seconds_until(task.app, options.get("countdown") or options.get("eta")) > seconds:
        options.pop("eta", None)
        options["countdown"] = seconds
    return message._replace(options=options)


def _queue(task: Any, call: PendingCall, message: Message, lease: float) -> None:
    """The call is published: queue it, and tell the calls that it supersedes, or that it is superseded."""
    try:
        outcomes = call.queue(lease)
    except LockUnavailable as error:
        logger.warning(
            "Task %s[%s] is published, but has no place among the pending calls: %s",
            task.name,
            message.task_id,
            error.summary,
            extra=about(error.key, Owner(process_name(), QUEUED, message.task_id), message.task_id),
        )
        return
    ended = {}  # a call may have had several keys
    for redis_keys, outcome in outcomes:
        if outcome.older:
            ended[outcome.older] = (redis_keys.key, message.task_id)
        if outcome.later:
            ended[message.task_id] = (redis_keys.key, outcome.later)
    for task_id, (key, later) in ended.items():
        _tell_superseded(task, task_id, key, later)


def _tell_superseded(task: Any, task_id: str, key: str, later: str) -> None:
    """A pending call does not run any more. Store that at once, for a caller that waits for its result.

    The worker that gets its message stores it too, and alone does if only a worker can (backend `rpc://`).
    """
    extra = about(key, Owner(process_name(), QUEUED, task_id), task_id)
    logger.info("Task %s[%s] is superseded by %s", task.name, task_id, later, extra=extra)
    signals.lock_superseded.send(sender=task, task_id=task_id, key=key, by=later)
    if task.ignore_result or isinstance(task.backend, RPCBackend):
        return
    try:
        task.backend.store_result(task_id, TaskRevokedError(superseded_text(later)), states.REVOKED)
    except Exception as error:  # noqa: BLE001 - every backend has errors of its own
        logger.warning("could not store that task %s is superseded: %s", task_id, error, extra=extra)
