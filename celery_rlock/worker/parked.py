"""Tasks that are scheduled in this worker: waiters for a lock, and unique tasks with an ETA."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol
from weakref import WeakSet

from celery.worker import state

from celery_rlock.log import logger
from celery_rlock.options.headers import LockHeaders, proven_since, sealed
from celery_rlock.options.options import Options
from celery_rlock.running import redelivery
from celery_rlock.running.busy import backoff
from celery_rlock.running.replaced import may_be_replaced
from celery_rlock.running.reschedule import seconds_until
from celery_rlock.server.lock_server import WOKEN_TRUST_MS, LockServer
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Place
from celery_rlock.server.wakeups import WakeCallbacks
from celery_rlock.worker.celery_internals import is_scheduled, replace_timer_call, timer_entry

#: Less than the half hour after which RabbitMQ takes back a message that is not acknowledged.
_LONGEST_STAY = 600.0

#: After so many seconds without an answer from Redis the task starts, so that `lock_unavailable` decides.
LONGEST_SILENCE = 5.0

_KEEP_PLACE = 60.0
_MARGIN = 0.05
_ASK_AGAIN = 0.5
_LOOK_FOR_REVOKED_EVERY = 1.0
_LOOK_FOR_PROCESS = 0.05
_LONGEST_PASSING = 2.0


class Asker(Protocol):
    """What a parked task needs of the waker."""

    @property
    def timer(self) -> Any: ...

    def can_start(self) -> bool: ...

    def waits(self, parked: ParkedTask, lock: str) -> None: ...

    def ask(self, parked: ParkedTask, *, urgent: bool) -> None: ...

    def pass_on(self, parked: ParkedTask) -> None: ...

    def give_up(self, parked: ParkedTask) -> None: ...

    def forget(self, parked: ParkedTask) -> None: ...


class ParkedTask:
    """A waiter whose message lies in this worker, not acknowledged, until it is woken.

    Its message was published again after its task had found the lock busy. Or it is new, and waits at once,
    because a task with the same key waits here: then its first place is at the end of the line.

    When it is woken it starts at once. Until then it asks now and then whether the lock is free, which needs
    neither a delivery nor a pool process. It starts by itself, so that the task can look, when no answer
    comes, when the task has something to decide, or when it has been here too long.

    Everything here is called on the worker's event loop, except `take_place` and `join`.
    """

    def __init__(self, request: Any, asker: Asker) -> None:
        self.request, self._asker = request, asker
        self.place: Place | None = None
        self.callbacks: WakeCallbacks | None = None
        self.is_over = False
        self.has_begun = False  #: whether it started because it was its turn
        self._was_scheduled = False  #: whether Celery has counted it among its scheduled tasks
        self.joins = request.rlock_line is not None  #: whether it is new and has no place yet
        self._is_new = self.joins
        headers: LockHeaders = request.rlock_headers
        self._options: Options = request.rlock_plan.options
        self._counter = "busy_attempts" if self._is_new else headers.counter
        self._attempts = headers.count(self._counter)
        self._stay_until = monotonic() + min(_LONGEST_STAY, redelivery.visibility_timeout(request.app) / 4)
        self._asked: float | None = monotonic()  #: when it asked, while no answer has come
        first_look = monotonic() + seconds_until(request.app, request.eta)
        self._backoff_until = monotonic() + self._pause() if self._is_new else first_look
        expires = request.expires
        self._expires = monotonic() + seconds_until(request.app, expires) if expires else math.inf
        self._next_look: float | None = first_look
        self._looks_for_silence = self._is_new  #: whether the next look is needed only if no answer comes
        self._passed_until = math.inf  #: when to stop passing turns on; inf: it has not passed one on
        self._start: Callable[[], None] = replace_timer_call(request, self._look)

    def take_place(self, lock_server: LockServer) -> Place:
        """Its place in line. Runs the user's code and may ask Redis: not on the event loop."""
        if self.place is None:
            keep = self._options.backoff_max + _KEEP_PLACE
            owner = self.request.rlock_owner
            if self._is_new:
                self.place = lock_server.wakeups.place(self.request.rlock_line, owner, 0, keep)
                return self.place
            headers: LockHeaders = self.request.rlock_headers
            all_keys: list[RedisKeys] = self.request.rlock_redis_keys()
            redis_keys = waited_for(headers.waits_for, all_keys)
            since = proven_since(headers, lock_server, self.request.id, all_keys)
            limit = self.request.rlock_limit(redis_keys)
            self.place = lock_server.wakeups.place(redis_keys, owner, since, keep, limit=limit)
        return self.place

    def join(self, since: int, lock_server: LockServer) -> LockHeaders:
        """The server gave this new message its place. Returns its headers. May ask Redis, as above."""
        place = self.place = self.take_place(lock_server)._replace(since=since)
        self.joins = False
        headers = replace(self.request.rlock_headers, since=since, retries=0)
        return sealed(headers, lock_server, self.request.id, [place.redis_keys])

    def on_joined(self, headers: LockHeaders) -> None:
        """From now on its message says since when its task waits, as if it had been published again."""
        if self._waits:
            self.request.rlock_headers = headers

    def on_twin(self) -> None:
        """Another delivery of its message has the lock: the pool process knows what to do."""
        if self._waits:
            self.leave()
            self._cancel_timer()
            self._start()

    def on_answer(self, quiet: float) -> None:
        """The lock is not free before `quiet` seconds have passed, unless a wake-up says so. 0: start now."""
        self._asked = None
        if quiet == 0 and self._waits:
            self._begin()
        elif self._waits:
            if self.place is not None:
                self._asker.waits(self, self.place.redis_keys.lock)
            at = min(monotonic() + quiet, self._backoff_until)
            if self._next_look is not None and (at < self._next_look or self._looks_for_silence):
                self._look_at(at)
        else:  # it began or left while the question was on its way, which may have renewed its place
            self._asker.give_up(self)

    def on_no_place(self) -> None:
        """Its key cannot be computed here. It starts when its backoff is over: the pool process tells why."""
        self._asked = None
        self._stay_until = self._backoff_until

    def on_no_answer(self) -> None:
        """Redis could not be asked: try again soon."""
        if self._waits:
            self._look_at(monotonic() + _ASK_AGAIN)

    def on_turn(self) -> None:
        """The lock is free, and it is this task's turn.

        While all processes of this worker are busy, the turn goes to a waiter of another worker. If that does
        not help for too long, the task starts here all the same, and goes into the pool's queue.
        """
        if self.has_begun:
            return  # its run is on the way to the lock, and uses this turn
        if not self._waits:
            self._asker.give_up(self)
        elif self._asker.can_start() or monotonic() > self._passed_until:
            self._begin()
        else:
            if self._passed_until == math.inf:
                self._passed_until = monotonic() + _LONGEST_PASSING
            self._asker.pass_on(self)
            self._look_at(monotonic() + _LOOK_FOR_PROCESS)

    def _begin(self) -> None:
        self.has_begun = True
        self._end()
        self._cancel_timer()
        self._start()

    def on_next(self) -> None:
        """The waiter before this one was woken: look soon whether it came."""
        self.on_answer(WOKEN_TRUST_MS / 1000)

    def on_doubt(self) -> None:
        """A wake-up may have been missed."""
        if self._waits:
            self._ask(urgent=True)

    def leave(self) -> None:
        """It does not start here, or starts without being woken: give up its place in line.

        A task that is revoked or has expired may be found so after it has begun. Then it does not use its
        turn.
        """
        self.has_begun = False
        self._end()
        self._asker.give_up(self)

    def give_back(self, broker_errors: tuple[type[Exception], ...]) -> None:
        """Let the broker deliver the message to another worker, after this one has left.

        Directly, because Celery's own way needs an event loop that still runs.
        """
        self._cancel_timer()
        if self.request.acknowledged:
            return
        self.request.acknowledged = True
        try:
            self.request.message.reject_log_error(logger, broker_errors, requeue=True)
        except Exception:  # kombu raises others on a connection that it has closed
            logger.warning("a waiting task cannot go back to the broker, which redelivers it", exc_info=True)

    @property
    def _waits(self) -> bool:
        if self.is_over or not is_scheduled(self.request):
            return False
        self._was_scheduled = True
        return True

    def _look(self, _: Any) -> None:
        """The timer has fired."""
        self._next_look = None
        if not self._waits:
            # Without an event loop, the timer has a thread of its own. It may be here before Celery counts
            # the task as scheduled, which it does right after it has set the timer.
            if not self.is_over and not self._was_scheduled:
                self._look_at(monotonic() + _LOOK_FOR_PROCESS)
            return
        now = monotonic()
        if self._passed_until != math.inf:
            self._look_after_passing(now)
            return
        backoff_is_over = now >= self._backoff_until
        if self._must_start(now, backoff_is_over=backoff_is_over):
            self.leave()
            self._start()
            return
        if backoff_is_over:
            self._attempts += 1
            self._backoff_until = now + self._pause()
        too_long = self._ask() + LONGEST_SILENCE
        self._look_at(min(self._backoff_until, too_long), for_silence=too_long < self._backoff_until)

    def _look_after_passing(self, now: float) -> None:
        """It passed its turn on. As soon as a process is free, ask whether the lock still is."""
        if self.request.id in state.revoked or self.request.maybe_expire():
            self.leave()
            self._start()
        elif self._asker.can_start() or now > self._passed_until:
            self._passed_until = math.inf
            self._look_at(self._backoff_until)
            self._ask(urgent=True)
        else:
            self._look_at(now + _LOOK_FOR_PROCESS)

    def _must_start(self, now: float, *, backoff_is_over: bool) -> bool:
        is_last = self._attempts + 1 >= (self._options.max_attempts or math.inf)
        decides = self._counter == "busy_attempts" and (is_last or may_be_replaced(self._options))
        return (
            (self._asked is not None and now - self._asked > LONGEST_SILENCE)
            or (decides and backoff_is_over)
            or now >= self._stay_until
            or self.request.id in state.revoked
            or bool(self.request.maybe_expire())
        )

    def _pause(self) -> float:
        """Attempts that are counted follow the backoff. Otherwise its maximum is often enough."""
        if self._options.max_attempts is not None:
            return backoff(self._options, self._attempts)
        return self._options.backoff_max

    def _ask(self, *, urgent: bool = False) -> float:
        """Ask whether the lock is free. Returns since when it has asked without an answer."""
        asked = self._asked = self._asked or monotonic()
        self._asker.ask(self, urgent=urgent)
        return asked

    def _look_at(self, when: float, *, for_silence: bool = False) -> None:
        self._looks_for_silence = for_silence
        if self._next_look is not None:
            self._cancel_timer()
        self._next_look = min(when, self._expires) + _MARGIN
        self.request.timer_handle = self._asker.timer.call_at(
            self._next_look, self._look, (self.request,), priority=6
        )

    def _cancel_timer(self) -> None:
        timer_entry(self.request).args = ()  # else `celery inspect scheduled` shows the cancelled entry too
        self._asker.timer.cancel(self.request.timer_handle)

    def _end(self) -> None:
        self.is_over = True
        headers: LockHeaders = self.request.rlock_headers
        # A new message was not published again for its task, so it counts no attempt.
        self.request.rlock_rewrite(
            headers if self._is_new else headers.counted(self._counter, self._attempts)
        )
        self._asker.forget(self)


def waited_for(name: str, all_keys: list[RedisKeys]) -> RedisKeys:
    """The key that a waiter names, if it is one of its task's keys; else the first of them.

    A message may name anything, and the task's code may have changed since it was sent.
    """
    return next((redis_keys for redis_keys in all_keys if redis_keys.lock == name), all_keys[0])


_unique: WeakSet[Any] = WeakSet()
_timers: set[Any] = set()


def free_when_revoked(request: Any, timer: Any) -> None:
    """Free the keys of a unique task about a second after it is revoked.

    Celery itself looks at a revoked task only when its ETA has come.
    """
    _unique.add(request)
    if timer not in _timers:
        _timers.add(timer)
        timer.call_after(_LOOK_FOR_REVOKED_EVERY, _look_for_revoked, (timer,))


def _look_for_revoked(timer: Any) -> None:
    for request in list(_unique):
        if not is_scheduled(request):
            _unique.discard(request)
        elif request.id in state.revoked:
            _unique.discard(request)
            request.free_queued()
    if _unique:
        timer.call_after(_LOOK_FOR_REVOKED_EVERY, _look_for_revoked, (timer,))
    else:
        _timers.discard(timer)
