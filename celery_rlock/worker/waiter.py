"""A task that waits for its lock in this worker: its message lies here unacknowledged until it is woken."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_rlock import backoff, redelivery
from celery_rlock.waiter import ATTEMPTS, BUSY_ATTEMPTS, SINCE

if TYPE_CHECKING:
    from celery_rlock.core.listener import Listener
    from celery_rlock.core.scripts import Place
    from celery_rlock.options import Options
    from celery_rlock.worker.waker import Waker

#: Below the half hour after which RabbitMQ takes back what is not acknowledged.
_LONGEST_STAY = 600.0
_LONGEST_SILENCE = 5.0
_SHORTEST_PAUSE = 0.05
_KEEP_PLACE = 60.0


def is_waiter(headers: dict[str, Any]) -> bool:
    return any(headers.get(header) for header in ATTEMPTS)


class Waiter:
    """A request that Celery would start when its backoff is over.

    Woken, it starts at once. Unwoken at the end of its backoff, it asks whether the lock is free and waits
    on; that costs one question, and neither a delivery nor a pool slot. It starts, for the task to see for
    itself, when nobody answers, when there is something to decide, or when it has lain here too long.

    Everything here is called on the worker's event loop, except `take_place`.
    """

    def __init__(self, request: Any, waker: Waker) -> None:
        self.request, self._waker = request, waker
        self.place: Place | None = None
        self._options: Options = request.task._lock_plan[0]  # noqa: SLF001
        self._counter = next(header for header in ATTEMPTS if request.request_dict.get(header))
        self._attempts = int(request.request_dict[self._counter])
        self._stay_until = monotonic() + min(_LONGEST_STAY, redelivery.visibility_timeout(request.app) / 4)
        self._unanswered_since: float | None = monotonic()
        self._next_look = 0.0
        self.is_over = False
        entry = _entry(request)
        self._start = _call_of(entry)
        entry.fun, entry.args, entry.kwargs = self._look, (request,), {}

    @property
    def waits(self) -> bool:
        """Not when it was started; nor when Celery, having lost its broker, forgot what it had scheduled."""
        return not self.is_over and self.request in state.scheduled_requests  # type: ignore[attr-defined]

    def ask(self) -> None:
        """Take its place among those who wait for the lock, or ask whether it is free."""
        if self._unanswered_since is None:
            self._unanswered_since = monotonic()
        self._waker.ask(self)

    def take_place(self, listener: Listener) -> Place:
        """Compute the key, which is the user's code, off the event loop."""
        if self.place is None:
            since = str(self.request.request_dict.get(SINCE) or "")
            keep = self._options.backoff_max + _KEEP_PLACE
            name, owner = self.request.rlock_name(), self.request.rlock_owner
            self.place = listener.place(name, owner, since, keep)
        return self.place

    def hear(self, seconds: float) -> None:
        """The answer: unless we are told, nothing happens to the lock for so long. 0: it is our turn."""
        self._unanswered_since = None
        if seconds == 0:
            self.go()
        elif not self.waits:
            self._waker.give_up(self)
        elif monotonic() + seconds < self._next_look:
            self._look_in(seconds)

    def _look(self, _: Any) -> None:
        """The backoff is over. (The timer is given the request so that `celery inspect scheduled` sees it.)"""
        if not self.waits:
            return
        if self._must_start():
            self._over()
            self._waker.give_up(self)
            self._start()
        else:
            self._attempts += 1
            self._look_in(backoff.delay(self._options, self._attempts))
            self.ask()

    def go(self) -> None:
        """It is its turn."""
        if self.waits:
            self._over()
            self._waker.timer.cancel(self.request._eta_timer_entry)  # noqa: SLF001
            self._start()
        else:
            self._waker.give_up(self)

    def leave(self) -> None:
        """It will not start here."""
        self._over()
        self._waker.give_up(self)

    def _over(self) -> None:
        self.is_over = True
        self.request.request_dict[self._counter] = self._attempts
        self._waker.forget(self)

    def _must_start(self) -> bool:
        options, now = self._options, monotonic()
        last = options.max_attempts is not None and self._attempts + 1 >= options.max_attempts
        return (
            (self._unanswered_since is not None and now - self._unanswered_since > _LONGEST_SILENCE)
            or (self._counter == BUSY_ATTEMPTS and (last or callable(options.busy)))
            or now >= self._stay_until
            or self.request.id in state.revoked
            or self.request.maybe_expire()
        )

    def _look_in(self, seconds: float) -> None:
        timer = self._waker.timer
        if self._next_look > monotonic():
            timer.cancel(self.request._eta_timer_entry)  # noqa: SLF001
        self._next_look = monotonic() + max(seconds, _SHORTEST_PAUSE)
        self.request.rlock_timer_entry = timer.call_at(
            self._next_look, self._look, (self.request,), priority=6
        )


def _entry(request: Any) -> Any:
    handle = request._eta_timer_entry  # noqa: SLF001
    return getattr(handle, "entry", handle)  # gevent's is a greenlet, which has it


def _call_of(entry: Any) -> Callable[[], None]:
    fun, args, kwargs = entry.fun, entry.args, entry.kwargs
    return lambda: fun(*args, **kwargs)
