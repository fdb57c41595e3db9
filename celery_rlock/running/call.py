"""How a task is being called: by a message, eagerly, or directly."""

from __future__ import annotations

from typing import Any

from celery import Task

from celery_rlock.core.execution import Execution, current_execution, new_delivery
from celery_rlock.core.name import Owner
from celery_rlock.hold import Hold

#: What the worker's parent process adds to a request: the delivery's name, when it was received, and whether
#: events of tasks are sent.
DELIVERY = "rlock_delivery"
RECEIVED = "rlock_received"
EVENTS = "rlock_events"


def call_of(request: Any) -> Call | None:
    """The traced call that this request belongs to, once it has begun."""
    call: Call | None = request.get("rlock_call")
    return call


class Call:
    """One call of a task.

    The tracer's own call has a request of its own: a message's, or an eager one's. Every other call,
    as `task()` inside another task or the items of a map, is direct: nothing can be scheduled again.
    """

    def __init__(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task, self.args, self.kwargs = task, args, kwargs
        request = task.request_stack.top
        self.traced = request is not None and not request.called_directly and call_of(request) is None
        self.request: Any = request if self.traced else None
        if self.traced:
            request.rlock_call = self
        self.by_message = self.traced and not request.is_eager
        self.hold: Hold | None = None
        self.received: float | None = None
        self.execution = self._new_execution() if self.by_message else current_execution()

    def run(self) -> Any:
        if self.traced:
            return self.task.run(*self.args, **self.kwargs)
        return Task.__call__(self.task, *self.args, **self.kwargs)  # gives it a request of its own

    def header(self, name: str) -> Any:
        """A header of the message; an eager call's are apart."""
        if self.request is None:
            return None
        return self.request.get(name) or (self.request.headers or {}).get(name)

    def attempts(self, header: str) -> int:
        """How often this task was scheduled again before, by our own counter in the message's headers."""
        count = self.header(header)
        return count if isinstance(count, int) else 0

    def forget(self, *headers: str) -> None:
        """Drop our headers from the request, so that the user's own `retry()` starts without them."""
        kept = (self.request.headers if self.request is not None else None) or {}
        for header in headers:
            kept.pop(header, None)

    def _new_execution(self) -> Execution:
        # The worker's parent names the delivery, so that it knows the owner too; else we name it here.
        delivery = self.request.get(DELIVERY) or new_delivery()
        self.received = self.request.get(RECEIVED)
        self.forget(DELIVERY, RECEIVED, EVENTS)
        return Execution(Owner(self.request.hostname or "celery", delivery, self.request.id))
