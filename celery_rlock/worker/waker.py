"""Wakes the tasks that are parked in this worker when their lock is free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from kombu.common import ignore_errors

from celery_rlock import settings
from celery_rlock.errors import RLockError
from celery_rlock.log import about, logger
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Place
from celery_rlock.server.wakeups import WakeCallbacks
from celery_rlock.worker.celery_internals import end_poll, has_free_process
from celery_rlock.worker.newcomers import Newcomers
from celery_rlock.worker.parked import ParkedTask
from celery_rlock.worker.prefetch import FixedPrefetch

_TIME_TO_LEAVE = 1.0
_TIME_TO_GATHER = 0.1


class Waker:
    """The parked tasks of one connection to the broker, and the thread that talks to Redis for them."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._parked: set[ParkedTask] = set()
        self._prefetch = FixedPrefetch(consumer)
        self._newcomers = Newcomers()
        self._changed = threading.Condition()
        self._asking: dict[ParkedTask, None] = {}
        self._leaving: dict[ParkedTask, None] = {}
        self._passing: dict[ParkedTask, None] = {}
        self._urgent = self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def timer(self) -> Any:
        return self._consumer.timer

    def add(self, request: Any) -> ParkedTask:
        """Park a request that Celery has scheduled and that waits for its lock."""
        parked = ParkedTask(request, self)
        self._parked.add(parked)
        self._prefetch.add(request)
        self.ask(parked, urgent=True)
        return parked

    def line_for(self, request: Any) -> RedisKeys | None:
        """The lock that a new message waits for here at once; None: it goes to the pool.

        Parked tasks do not count against the prefetch count. So a worker whose processes are all busy keeps
        only so many, and leaves the others to workers that could run them.
        """
        most: int = self._consumer.initial_prefetch_count  # 0: no limit
        if most and len(self._parked) >= most and not self.can_start():
            return None
        return self._newcomers.line_for(request)

    def waits(self, parked: ParkedTask, lock: str) -> None:
        """The server has said that this task waits for this lock."""
        self._newcomers.add(lock, parked.request)

    def ask(self, parked: ParkedTask, *, urgent: bool) -> None:
        """Take its place in line, or ask from there whether the lock is free."""
        self._note(self._asking, parked, urgent=urgent)

    def can_start(self) -> bool:
        """Whether a pool process is free."""
        return has_free_process(self._consumer.pool)

    def pass_on(self, parked: ParkedTask) -> None:
        """Give its turn to a waiter of another worker; it keeps its place."""
        self._note(self._passing, parked, urgent=True)

    def give_up(self, parked: ParkedTask) -> None:
        """Give up its place in line. If its turn had come, the next waiter is woken."""
        self.forget(parked)
        self._note(self._leaving, parked, urgent=True)

    def forget(self, parked: ParkedTask) -> None:
        """The task starts, or leaves."""
        self._parked.discard(parked)
        if parked.place is not None:
            self._newcomers.discard(parked.place.redis_keys.lock, parked.request)
        self._prefetch.discard(parked.request)

    def stop(self, *, give_back: bool) -> None:
        """The connection is lost, and the broker redelivers everything that is parked. Or the worker ends.

        Then, with `give_back`, the messages go back at once: an unrelated task may keep this worker from
        closing its connection for long.
        """
        if give_back and self._parked:
            self._stop_consuming()
        for parked in list(self._parked):
            parked.leave()
            if give_back:
                parked.give_back((*self._consumer.connection_errors, *self._consumer.channel_errors))
        with self._changed:
            self._urgent = self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_TIME_TO_LEAVE)

    def _stop_consuming(self) -> None:
        """Else the broker would deliver to this worker what it gives back."""
        task_consumer = self._consumer.task_consumer
        ignore_errors(self._consumer, task_consumer.cancel)
        ignore_errors(self._consumer, end_poll, task_consumer.channel)

    def _note(self, tasks: dict[ParkedTask, None], parked: ParkedTask, *, urgent: bool) -> None:
        with self._changed:
            tasks[parked] = None
            self._urgent |= urgent
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlock-waker", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._asking or self._urgent):
                    self._changed.wait()
                self._changed.wait_for(lambda: self._urgent, _TIME_TO_GATHER)
                asking, leaving, passing = list(self._asking), list(self._leaving), list(self._passing)
                stopped = self._stopped
                for tasks in (self._asking, self._leaving, self._passing):
                    tasks.clear()
                self._urgent = False
            try:
                lock_server = settings.server(self._consumer.app)
                self._pass_on(passing, lock_server)
                self._ask_for(asking, lock_server)
                _give_up(leaving, lock_server)
            except Exception:
                logger.exception("could not wake waiting tasks, they retry with backoff")
            if stopped:
                return

    def _ask_for(self, tasks: list[ParkedTask], lock_server: LockServer) -> None:
        """Ask for all of them in one round trip; one more gives new messages their places."""
        wakeups = lock_server.wakeups
        places: dict[ParkedTask, Place] = {}
        for parked in tasks:
            place = self._place_of(parked, lock_server) if not parked.is_over else None
            if place is not None:
                places[parked] = place
                wakeups.add(place, self._callbacks_of(parked))
        if not wakeups.listening:
            return  # once it listens, every task asks again
        self._join({parked: place for parked, place in places.items() if parked.joins}, lock_server)
        places = {parked: parked.place or place for parked, place in places.items() if not parked.joins}
        for parked, reply in zip(places, lock_server.wait(places.values()), strict=True):
            if isinstance(reply, Exception):
                self._in_loop(parked.on_no_answer)
            else:
                self._in_loop(parked.on_answer, reply)

    def _join(self, places: dict[ParkedTask, Place], lock_server: LockServer) -> None:
        """Give each of these new messages a place at the end of the line."""
        if not places:
            return
        for parked, since in zip(places, lock_server.join(places.values()), strict=True):
            if isinstance(since, Exception):
                self._in_loop(parked.on_no_answer)
            elif not since:
                self._in_loop(parked.on_twin)
            else:
                self._in_loop(parked.on_joined, parked.join(since, lock_server))

    def _place_of(self, parked: ParkedTask, lock_server: LockServer) -> Place | None:
        """Its place; None if its key cannot be computed, which must not disturb the other waiters."""
        try:
            return parked.take_place(lock_server)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            logger.warning("task %s cannot be woken, it retries with backoff: %s", parked.request.id, error)
            self._in_loop(parked.on_no_place)
            return None

    def _pass_on(self, tasks: list[ParkedTask], lock_server: LockServer) -> None:
        for parked in tasks:
            if parked.place is not None and not parked.is_over:
                lock_server.wakeups.add(parked.place, self._callbacks_of(parked))
                with suppress(RLockError):
                    lock_server.pass_on(parked.place)

    def _callbacks_of(self, parked: ParkedTask) -> WakeCallbacks:
        if parked.callbacks is None:
            handlers = (parked.on_turn, parked.on_next, parked.on_doubt)
            parked.callbacks = WakeCallbacks(*(partial(self._in_loop, handler) for handler in handlers))
        return parked.callbacks

    def _in_loop(self, do: Callable[..., None], *args: Any) -> None:
        hub = self._consumer.hub
        if hub is not None:
            hub.call_soon(self._guarded, do, *args)
        else:  # greenlet pools have no event loop, and need none
            self._guarded(do, *args)

    def _guarded(self, do: Callable[..., None], *args: Any) -> None:
        """Like Celery's timer, let only the broker's errors reach the consumer."""
        try:
            do(*args)
        except self._consumer.connection_errors:
            raise
        except Exception:
            logger.exception("could not wake a waiting task, it retries with backoff")


def _give_up(tasks: list[ParkedTask], lock_server: LockServer) -> None:
    for parked in tasks:
        if parked.place is None or parked.callbacks is None:
            continue
        lock_server.wakeups.discard(parked.place, parked.callbacks)
        try:
            # A task that has begun uses its turn: only a place that was taken again since must go.
            lock_server.give_up(parked.place, pass_turn=not parked.has_begun)
        except RLockError as error:
            task_id = parked.request.id
            extra = about(parked.place.redis_keys.key, parked.request.rlock_owner, task_id)
            logger.debug("could not give up the place of %s: %s", task_id, error, extra=extra)
