"""A task that waits for its lock in this worker: its message lies here unacknowledged until it is woken."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_rlock import backoff, redelivery
from celery_rlock.core.name import Name
from celery_rlock.core.scripts import WOKEN_TRUST_MS
from celery_rlock.heir import seconds_until
from celery_rlock.waiter import ATTEMPTS, BUSY_ATTEMPTS, SINCE, WAITS_FOR

if TYPE_CHECKING:
    from celery_rlock.core.listener import Listener
    from celery_rlock.core.replies import Place
    from celery_rlock.options import Options
    from celery_rlock.worker.waker import Waker

#: Below the half hour after which RabbitMQ takes back what is not acknowledged.
_LONGEST_STAY = 600.0
_LONGEST_SILENCE = 5.0
_KEEP_PLACE = 60.0
_MARGIN = 0.05
_ASK_AGAIN = 0.5


class Waiter:
    """A request that Celery would start when its backoff is over.

    Woken, it starts at once. Unwoken, it asks now and then from where it is whether the lock is free: that
    costs neither a delivery nor a pool slot. It starts, for the task to see for itself, when nobody answers,
    when there is something to decide, or when it has lain here too long.

    Everything here is called on the worker's event loop, except `take_place`.
    """

    def __init__(self, request: Any, waker: Waker) -> None:
        self.request, self._waker = request, waker
        self.place: Place | None = None
        self.is_over = False
        self._options: Options = request.rlock_plan.options
        self._counter = next(header for header in ATTEMPTS if request.request_dict.get(header))
        self._attempts = int(request.request_dict[self._counter])
        self._stay_until = monotonic() + min(_LONGEST_STAY, redelivery.visibility_timeout(request.app) / 4)
        self._asked: float | None = monotonic()  # and not answered yet
        self._backoff_until = monotonic() + seconds_until(request.app, request.eta)
        expires = request.expires
        self._expires = monotonic() + seconds_until(request.app, expires) if expires else math.inf
        self._next_look: float | None = self._backoff_until
        entry = _entry(request)
        self._start = _call_of(entry)
        # With the request as its argument `celery inspect scheduled` shows it.
        entry.fun, entry.args, entry.kwargs = self._look, (request,), {}

    def take_place(self, listener: Listener) -> Place:
        """May compute the key, which is the user's code: off the event loop."""
        if self.place is None:
            since = str(self.request.request_dict.get(SINCE) or "")
            keep = self._options.backoff_max + _KEEP_PLACE
            lock = self.request.request_dict.get(WAITS_FOR)
            name = Name.around(lock, lock) if lock else self.request.rlock_names()[0]
            self.place = listener.place(name, self.request.rlock_owner, since, keep)
        return self.place

    def on_answer(self, quiet: float) -> None:
        """Unless we are told, nothing happens to the lock for so long. 0: it is ours."""
        self._asked = None
        if quiet == 0:
            self.on_turn()
        elif self._waits:
            at = monotonic() + quiet
            if self._next_look is not None and at < self._next_look:
                self._look_at(at)
        else:
            self._waker.give_up(self)

    def on_no_answer(self) -> None:
        """Redis could not be asked: try again soon."""
        if self._waits:
            self._look_at(monotonic() + _ASK_AGAIN)

    def on_turn(self) -> None:
        if self._waits:
            self._over()
            self._cancel_timer()
            self._start()
        else:
            self._waker.give_up(self)

    def on_next(self) -> None:
        """The one before us was woken."""
        self.on_answer(WOKEN_TRUST_MS / 1000)

    def on_doubt(self) -> None:
        """We may have missed something."""
        if self._waits:
            self._ask(urgent=True)

    def leave(self) -> None:
        """It will not start here."""
        self._over()
        self._waker.give_up(self)

    @property
    def _waits(self) -> bool:
        """Not when it was started; nor when Celery, having lost its broker, forgot what it had scheduled."""
        return not self.is_over and self.request in state.scheduled_requests  # type: ignore[attr-defined]

    def _look(self, _: Any) -> None:
        """Time has passed."""
        self._next_look = None
        if not self._waits:
            return
        now = monotonic()
        backoff_is_over = now >= self._backoff_until
        if self._must_start(now, backoff_is_over=backoff_is_over):
            self.leave()
            self._start()
            return
        if backoff_is_over:
            self._attempts += 1
            self._backoff_until = now + self._pause()
        self._look_at(self._backoff_until)
        self._ask()

    def _must_start(self, now: float, *, backoff_is_over: bool) -> bool:
        is_last = self._attempts + 1 >= (self._options.max_attempts or math.inf)
        decides = self._counter == BUSY_ATTEMPTS and (is_last or callable(self._options.busy))
        return (
            (self._asked is not None and now - self._asked > _LONGEST_SILENCE)
            or (decides and backoff_is_over)
            or now >= self._stay_until
            or self.request.id in state.revoked
            or bool(self.request.maybe_expire())
        )

    def _pause(self) -> float:
        """Attempts that are counted follow the backoff; for a look at whether all is well its end will do."""
        if self._options.max_attempts is not None:
            return backoff.delay(self._options, self._attempts)
        return self._options.backoff_max

    def _ask(self, *, urgent: bool = False) -> None:
        if self._asked is None:
            self._asked = monotonic()
        self._waker.ask(self, urgent=urgent)

    def _look_at(self, when: float) -> None:
        if self._next_look is not None:
            self._cancel_timer()
        self._next_look = min(when, self._expires) + _MARGIN
        self.request.rlock_timer_entry = self._waker.timer.call_at(
            self._next_look, self._look, (self.request,), priority=6
        )

    def _cancel_timer(self) -> None:
        _entry(self.request).args = ()  # `celery inspect scheduled` shows what is cancelled, too
        self._waker.timer.cancel(self.request._eta_timer_entry)  # noqa: SLF001

    def _over(self) -> None:
        self.is_over = True
        self.request.request_dict[self._counter] = self._attempts
        self._waker.forget(self)


def _entry(request: Any) -> Any:
    handle = request._eta_timer_entry  # noqa: SLF001
    return getattr(handle, "entry", handle)  # gevent's is a greenlet, which has it


def _call_of(entry: Any) -> Callable[[], None]:
    fun, args, kwargs = entry.fun, entry.args, entry.kwargs
    return lambda: fun(*args, **kwargs)
