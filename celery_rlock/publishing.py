"""`lock_from="publish"`: a task takes its keys when it is published, so that it is queued once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.serialization import dumps, loads

from celery_rlock import settings
from celery_rlock.core.execution import new_delivery
from celery_rlock.core.log import about, logger
from celery_rlock.core.name import QUEUED, Name, Owner
from celery_rlock.core.replies import Busy
from celery_rlock.core.scripts import Scripts
from celery_rlock.errors import ConfigurationError, DuplicateTask, LockUnavailable
from celery_rlock.heir import seconds_until
from celery_rlock.waiter import is_waiter

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult

    from celery_rlock.options import Options
    from celery_rlock.plan import Plan

#: What Celery gives to the members of a chain, group or chord, and what hangs on a task's end.
_COMPANY = ("chain", "chord", "group_id", "root_id", "parent_id", "link", "link_error")


class Message(NamedTuple):
    """A task's message before it is published."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    task_id: str
    options: dict[str, Any]


def is_unique(task: Any, plan: Plan, options: dict[str, Any]) -> bool:
    """Whether this call takes its keys now: not what runs here and now, nor what was accepted before."""
    if plan.options.from_ != "publish" or task.app.conf.task_always_eager or not settings.enabled(task.app):
        return False
    return not options.get("retries") and not is_waiter(options.get("headers") or {})


def publish_once(
    task: Any, plan: Plan, message: Message, publish: Callable[[], AsyncResult[Any]]
) -> AsyncResult[Any]:
    """Publish under the keys; or give the result of the same task that has them, queued or running.

    Where somebody else has a key it is published without, and takes it when it runs; so is what Celery's
    canvas or a callback hangs on, for that must not be left hanging.
    """
    scripts = settings.server(task.app)
    lease = queue_lease(task.app, plan.options, {"expires": task.expires, **message.options})
    names = [scripts.name(key) for key in plan.keys_of(*_as_received(task, message))]
    queued = _Queued(scripts, names, Owner(_publisher(), QUEUED, message.task_id))
    try:
        busy = queued.take(lease, str(task.name))
    except LockUnavailable as error:
        if plan.options.unavailable == "fail":
            raise
        who = about(error.key, queued.owner, message.task_id)
        text = "Task %s[%s] is published without its lock: %s"
        logger.warning(text, task.name, message.task_id, error, extra=who)
        busy = []
    if len(busy) == len(names) and _is_duplicate(task, message, busy):
        first = busy[0]
        who = about(first.name.key, first.holder, first.task_id)
        logger.info(
            "Task %s is not published: %s has lock %r", task.name, first.holder, first.name.key, extra=who
        )
        if plan.options.duplicate == "raise":
            raise DuplicateTask(first.name.key, first.task_id, first.holder)
        return task.AsyncResult(first.task_id)  # type: ignore[no-any-return]
    try:
        return publish()
    except BaseException:
        if not busy:
            queued.free()
        raise


def free_queued(scripts: Scripts, names: list[Name], task_id: str) -> None:
    """Free what a task has had since it was published; nothing else."""
    _Queued(scripts, names, Owner("", QUEUED, task_id)).free()


def queue_lease(app: Celery, options: Options, message: dict[str, Any]) -> float:
    """How long a task may keep its keys in the queue: beyond its ETA, but not beyond its expiry."""
    lease = seconds_until(app, message.get("countdown") or message.get("eta")) + options.queue_ttl
    if message.get("expires") is not None:
        lease = min(lease, seconds_until(app, message["expires"]) + 1)
    if lease <= 0:
        raise ConfigurationError(
            "the task's time in the queue is over before it is published: its expiry is in the past, or its "
            f"ETA by more than lock_queue_ttl ({options.queue_ttl} s)"
        )
    return lease


class _Queued:
    """The keys of a task that is being published: all of them, or none."""

    def __init__(self, scripts: Scripts, names: list[Name], owner: Owner) -> None:
        self._scripts, self._names, self.owner = scripts, names, owner

    def take(self, lease: float, task: str) -> list[Busy]:
        """Take them. If any is busy, none is taken: those that are."""
        busy = []
        try:
            for name in self._names:
                reply = self._scripts.acquire(name, self.owner, 1, lease, task)
                if isinstance(reply, Busy):
                    busy.append(reply)
        except BaseException:
            self.free()
            raise
        if busy:
            self.free()
        return busy

    def free(self) -> None:
        for name in self._names:
            try:
                self._scripts.release(name, self.owner, 0)
            except LockUnavailable as error:
                who = about(name.key, self.owner, self.owner.task_id)
                logger.warning("could not release lock %r, its lease ends it: %s", name.key, error, extra=who)


def _is_duplicate(task: Any, message: Message, busy: list[Busy]) -> bool:
    """Whether one other call of the same task has all the keys."""
    if any(message.options.get(company) for company in _COMPANY):
        return False
    if len({one.task_id for one in busy}) > 1 or busy[0].task != task.name:
        return False
    # A task that runs may publish itself again, under its own id: `self.replace()`.
    return busy[0].task_id != message.task_id or f"/{QUEUED}:" in busy[0].holder


def _as_received(task: Any, message: Message) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the worker will have them, for it must make the same keys of them."""
    serializer = message.options.get("serializer") or task.serializer or task.app.conf.task_serializer
    content_type, encoding, data = dumps((message.args, message.kwargs), serializer)
    args, kwargs = loads(data, content_type, encoding, accept=[content_type])
    return tuple(args), kwargs


def _publisher() -> str:
    """Another one for each call: who publishes an id again is not who published it."""
    return f"{os.getpid()}@{socket.gethostname()}/{new_delivery()}"
