"""How a task is being called: by a message, eagerly, or directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

from celery import Task
from celery.exceptions import Ignore

from celery_rlock.core.execution import Execution, current_execution, stay_current
from celery_rlock.errors import LockBusy
from celery_rlock.options.headers import (
    NO_HEADERS,
    LockHeaders,
    delivery_of,
    name_delivery,
    read_headers,
    write_headers,
)
from celery_rlock.running.pending_place import PendingPlace
from celery_rlock.running.task_lock import CallLock, TaskLock
from celery_rlock.server.owner import Owner

#: The traced call of each request that has begun; None if it has ended. The request itself does not keep its
#: call, because a user may copy or serialize a request.
_calls: WeakKeyDictionary[Any, Call | None] = WeakKeyDictionary()


class Ended(Ignore):
    """Tells Celery that this delivery of the task is over. What is to be known of it is stored already."""


def call_of(request: Any) -> Call | None:
    """The traced call that this request belongs to, from its begin until `forget_call`."""
    return _calls.get(request)


def forget_call(request: Any) -> None:
    """The call of this request has ended."""
    _calls[request] = None


def headers_of(task: Any, request: Any) -> LockHeaders:
    """Our headers of the message, or of the eager call, that this request belongs to."""
    return read_headers(vars(request), str(task.name))


class Call:
    """One call of a task.

    Celery's tracer calls the task with a request: a message's, or an eager one's. Every other call is direct,
    such as `task()` inside another task or the items of a `map`. A direct call has no message to publish
    again.
    """

    def __init__(
        self,
        task: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inner: Callable[..., Any] | None = None,
    ) -> None:
        """`inner` is the `__call__` of the user's own classes, if there is one; it calls `run()`."""
        self.task, self.args, self.kwargs = task, args, kwargs
        self._inner, self._ran = inner, False
        request = task.request_stack.top
        self.traced = request is not None and not request.called_directly and request not in _calls
        self.request: Any = request if self.traced else None
        if self.traced:
            _calls[request] = self
        self.headers = headers_of(task, request) if self.traced else NO_HEADERS
        self.by_message = self.traced and not request.is_eager
        self.lock: CallLock | None = None
        self._task_lock: TaskLock | None = None
        self.pending: PendingPlace | None = None  #: with `lock_pending` or `lock_duplicate="replace"`
        self.received: float | None = None
        self.replaced: Any = None  #: the error that was raised in the run because a newer call replaces it
        self.execution = self._new_execution() if self.by_message else current_execution()
        self.leave_execution: Callable[[], None] = lambda: None

    @property
    def task_lock(self) -> TaskLock:
        """What the user sees of the lock, which does not know it: that would be a reference cycle."""
        if self._task_lock is None:
            self._task_lock = TaskLock(cast("CallLock", self.lock))
        return self._task_lock

    def keep_execution(self) -> None:
        """The lock may be held until `task_postrun`: errbacks and handlers before it may enter it too."""
        if self.traced and self.lock is not None and self.lock.entered:
            self.leave_execution = stay_current(self.execution)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the keys are made of. The worker's parent process makes the same keys from the message."""
        if self.by_message:
            return tuple(self.request.args or ()), self.request.kwargs or {}
        return self.args, self.kwargs

    def run(self) -> Any:
        """Run the task, inside the lock."""
        if self._inner is not None:
            return self._inner(self.task, *self.args, **self.kwargs)
        if self.traced:
            return self.task.run(*self.args, **self.kwargs)
        return Task.__call__(self.task, *self.args, **self.kwargs)  # pushes a request of its own

    def begin_run(self) -> bool:
        """Whether `run()` has not begun yet: then it belongs to the request that the tracer has pushed."""
        begins, self._ran = not self._ran, True
        return begins

    def carry(self, headers: LockHeaders) -> None:
        """Have the user's own `retry()` send these of our headers, and no others."""
        if self.request is not None and isinstance(self.request.headers, dict):
            write_headers(self.request.headers, headers)

    def _new_execution(self) -> Execution:
        # The worker's parent process names the delivery, so that it knows the owner too.
        delivery = delivery_of(vars(self.request))
        if delivery is not None:
            self.received = delivery.received
        self.carry(self.headers)
        name = delivery.name if delivery is not None else name_delivery(vars(self.request))
        return Execution(Owner(self.request.hostname or "celery", name, self.request.id))


def without_our_frames(error: BaseException) -> BaseException:
    """The error of a call, with a traceback that leaves out how the lock was taken.

    A user sees the own code first. And Celery copies each frame, for the log and for the worker's parent
    process: without ours, a skipped call costs half the CPU time.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code is not Call.run.__code__:
        frames = frames.tb_next
    if frames is not None:  # the task's own code raised it
        return error.with_traceback(frames.tb_next)
    return error.with_traceback(None) if isinstance(error, Ended | LockBusy) else error
