"""`lock_from="publish"`: a task takes its keys in `apply_async`, so that a duplicate is never queued."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery.result import AsyncResult
from kombu.exceptions import EncodeError

from celery_rlock import settings
from celery_rlock.core.lease import free_later, undo_acquire
from celery_rlock.errors import LockUnavailable
from celery_rlock.options.headers import read_headers
from celery_rlock.options.plan import Plan
from celery_rlock.publishing.message import (
    Message,
    Publish,
    as_received,
    existing_result,
    is_duplicate,
    process_name,
    publish_all_the_same,
    publisher_name,
    queue_lease,
    run_by,
)
from celery_rlock.publishing.pending import publish_pending
from celery_rlock.running.releasing import free_queued
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import EAGER, QUEUED, Owner, new_delivery
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy, Release

_TRY_TO_FREE = 60.0


def takes_keys(task: Any, plan: Plan, options: dict[str, Any]) -> bool:
    """Whether this call takes its keys now. A retry or a waiter was accepted before and does not."""
    if plan.options.from_ != "publish" or not settings.enabled(task.app):
        return False
    headers = read_headers(options.get("headers") or {}, str(task.name))
    return not options.get("retries") and not headers.is_waiter


def check_limits(task: Any, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ConfigurationError if `lock_limit` gives no limit for these arguments."""
    with suppress(EncodeError, TypeError):  # Celery tells what is wrong with these arguments
        plan.limits_of(*as_received(task, Message(args, kwargs, "", {})))


def publish_once(task: Any, plan: Plan, message: Message, publish: Publish) -> AsyncResult[Any]:
    """Publish, unless the call is a duplicate: then return the result of the other one."""
    how = publish_pending if plan.options.pending_places else _publish_with_keys
    return how(task, plan, message, publish)


def _publish_with_keys(task: Any, plan: Plan, message: Message, publish: Publish) -> AsyncResult[Any]:
    """Take the keys and publish. If the same task already has them, return that task's result instead.

    If another task holds a key, the call is published without its keys and takes them when it runs. So is a
    member of a canvas or a task with callbacks, because dropping it would leave the others waiting.
    """
    lock_server = settings.server(task.app)
    lease = queue_lease(task, plan.options, {"expires": task.expires, **message.options})
    all_keys = plan.redis_keys(lock_server, *as_received(task, message))
    queued = _QueuedKeys(lock_server, all_keys, Owner(publisher_name(), QUEUED, message.task_id))
    try:
        busy = queued.take(lease, str(task.name))
    except LockUnavailable as error:
        publish_all_the_same(task, plan.options, message, error)
        busy = []
    if len(busy) == len(all_keys) and is_duplicate(task, message, busy):
        return existing_result(task, plan.options, busy[0])
    is_eager = task.app.conf.task_always_eager
    if is_eager:
        publish = run_by(Owner(process_name(), EAGER + new_delivery(), message.task_id), publish)
    try:
        return publish(message)
    except BaseException:
        if is_eager:  # with task_eager_propagates a retry raises and never runs, but has kept the keys
            free_queued(lock_server, all_keys, message.task_id)
        elif not busy:
            queued.free()
        raise


class _QueuedKeys:
    """The keys of a task that is being published: all of them, or none."""

    def __init__(self, lock_server: LockServer, all_keys: list[RedisKeys], owner: Owner) -> None:
        self._lock_server, self._all_keys, self.owner = lock_server, all_keys, owner
        self._attempt = new_delivery()

    def take(self, lease: float, task: str) -> list[Busy]:
        """Take all keys. If any is busy, take none and return those that are."""
        busy = []
        try:
            for redis_keys in self._all_keys:
                reply = self._lock_server.acquire(
                    redis_keys, self.owner, 1, lease, task, attempt=self._attempt
                )
                if isinstance(reply, Busy):
                    busy.append(reply)
        except BaseException:
            for redis_keys in self._all_keys:
                undo_acquire(self._lock_server, redis_keys, self.owner, self._attempt, lease)
            raise
        if busy:
            self.free()
        return busy

    def free(self) -> None:
        """Free what this call has taken, and nothing that a later call with the same id takes."""
        release = Release(fence=self._attempt)
        for redis_keys in self._all_keys:
            try:
                self._lock_server.release(redis_keys, self.owner, release)
            except LockUnavailable:
                give_up = now() + _TRY_TO_FREE
                free_later(self._lock_server, redis_keys, self.owner, release, give_up=give_up)
