"""A call on its way to the broker: its message, how long it may be queued, and what a duplicate gets."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from celery.result import AsyncResult
from kombu.serialization import dumps, loads

from celery_rlock import signals
from celery_rlock.core.execution import Execution, current_execution, running
from celery_rlock.errors import ConfigurationError, DuplicateTask, LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.options.keys import is_model
from celery_rlock.options.options import Options
from celery_rlock.running.reschedule import seconds_until
from celery_rlock.server.owner import QUEUED, Owner, new_delivery
from celery_rlock.server.replies import Busy

#: What Celery sets on the members of a chain, group or chord, and on tasks with callbacks.
_CANVAS = ("chain", "chord", "group_id", "root_id", "parent_id", "link", "link_error")


class Message(NamedTuple):
    """A task's message before it is published."""

    args: Sequence[Any]  #: as the caller gave them: Celery shows a list as a list
    kwargs: dict[str, Any]
    task_id: str
    options: dict[str, Any]


#: Sends a message with Celery's own `apply_async`.
Publish = Callable[[Message], "AsyncResult[Any]"]  # Celery 5.5.0 cannot subscript it


def queue_lease(task: Any, options: Options, message: dict[str, Any]) -> float:
    """How many seconds a task may keep its keys in the queue: beyond its ETA, but not beyond its expiry."""
    app = task.app
    lease = seconds_until(app, message.get("countdown") or message.get("eta")) + options.queue_ttl
    if message.get("expires") is not None:
        lease = min(lease, seconds_until(app, message["expires"]) + 1)
    if lease <= 0:
        raise ConfigurationError(
            f"the time of task {task.name} in the queue is over before it is published: its expiry is in the "
            f"past, or its ETA is in the past by more than lock_queue_ttl ({options.queue_ttl} s)"
        )
    return lease


def is_duplicate(task: Any, message: Message, busy: list[Busy]) -> bool:
    """Whether one other call of the same task has all the keys."""
    if is_in_canvas(message):
        return False
    holder = busy[0].owner
    if len({one.owner.task_id for one in busy}) > 1 or busy[0].task != task.name:
        return False
    # A running task may publish itself again under its own id: `self.replace()`.
    return holder.task_id != message.task_id or holder.delivery == QUEUED


def is_in_canvas(message: Message) -> bool:
    """Whether others wait for this call: to drop it would leave them waiting."""
    return any(message.options.get(name) for name in _CANVAS)


def existing_result(task: Any, options: Options, busy: Busy) -> AsyncResult[Any]:
    key, holder, task_id = busy.redis_keys.key, busy.holder, busy.owner.task_id
    extra = about(key, holder, task_id)
    logger.info("Task %s is not published: %s has lock %r", task.name, holder, key, extra=extra)
    error = DuplicateTask(key, task_id, holder, str(task.name))
    action = "raise" if options.duplicate == "raise" else "existing"
    signals.lock_duplicate.send(sender=task, error=error, action=action)
    if options.duplicate == "raise":
        raise error
    return task.AsyncResult(task_id)  # type: ignore[no-any-return]


def publish_all_the_same(task: Any, options: Options, message: Message, error: LockUnavailable) -> None:
    """Redis does not answer: publish without the lock, or raise, as `lock_unavailable` says."""
    if options.unavailable == "fail":
        raise error.of(str(task.name)) from error
    logger.warning(
        "Task %s[%s] is published without its lock: %s",
        task.name,
        message.task_id,
        error.summary,
        extra=about(error.key, Owner(process_name(), QUEUED, message.task_id), message.task_id),
    )


def run_by(owner: Owner, publish: Publish) -> Publish:
    """With `task_always_eager`, publishing runs the task: as the owner that takes over what was queued.

    So the calls that this run makes find its task id at the key, as they would with a broker.
    """

    def run(message: Message) -> AsyncResult[Any]:
        with running(Execution(owner, outer=current_execution())):
            return publish(message)

    return run


def as_received(task: Any, message: Message) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the worker will receive them, because it must make the same keys from them.

    Celery sends a pydantic model as its dict, and the worker makes an equal model of it.
    """
    serializer = message.options.get("serializer") or task.serializer or task.app.conf.task_serializer
    body = (
        [_without_model(value) for value in message.args],
        {name: _without_model(value) for name, value in message.kwargs.items()},
    )
    content_type, encoding, data = dumps(body, serializer)
    args, kwargs = loads(data, content_type, encoding, accept=[content_type])
    args = (sent if is_model(sent) else value for sent, value in zip(message.args, args, strict=True))
    models = {name: value for name, value in message.kwargs.items() if is_model(value)}
    return tuple(args), {**kwargs, **models}


def _without_model(value: Any) -> Any:
    return None if is_model(value) else value


def publisher_name() -> str:
    """Unique per call, so republishing a task id creates a new owner."""
    return f"{process_name()}/{new_delivery()}"


def process_name() -> str:
    return f"{os.getpid()}@{socket.gethostname()}"
