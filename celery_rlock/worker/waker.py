"""Wakes the tasks that wait in this worker when their lock is free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_rlock import settings
from celery_rlock.core.listener import Ears, Listener, listener_of
from celery_rlock.core.log import about, logger
from celery_rlock.errors import LockUnavailable
from celery_rlock.worker.waiter import Waiter

if TYPE_CHECKING:
    from celery_rlock.core.scripts import Scripts

_TIME_TO_LEAVE = 1.0
_TIME_TO_GATHER = 0.1


class Waker:
    """The waiters of one connection to the broker, and the thread that speaks to Redis for them."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._waiters: set[Waiter] = set()
        self._changed = threading.Condition()
        self._asking: dict[Waiter, None] = {}
        self._leaving: dict[Waiter, None] = {}
        self._urgent = self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def timer(self) -> Any:
        return self._consumer.timer

    def add(self, request: Any) -> Waiter:
        """Celery has scheduled this request, which waits for its lock."""
        waiter = Waiter(request, self)
        self._waiters.add(waiter)
        self.ask(waiter, urgent=True)
        return waiter

    def ask(self, waiter: Waiter, *, urgent: bool) -> None:
        """Have it take its place, or ask whether the lock is free."""
        self._note(self._asking, waiter, urgent=urgent)

    def give_up(self, waiter: Waiter) -> None:
        """Give up its place; if its turn had come, it is the next one's."""
        self.forget(waiter)
        self._note(self._leaving, waiter, urgent=True)

    def forget(self, waiter: Waiter) -> None:
        """It has had its turn."""
        self._waiters.discard(waiter)

    def stop(self) -> None:
        """The connection is gone, or the worker ends: all that waits here comes back from the broker."""
        for waiter in list(self._waiters):
            waiter.leave()
        with self._changed:
            self._urgent = self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_TIME_TO_LEAVE)

    def _note(self, waiters: dict[Waiter, None], waiter: Waiter, *, urgent: bool) -> None:
        with self._changed:
            waiters[waiter] = None
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
                asking, leaving, stopped = list(self._asking), list(self._leaving), self._stopped
                self._asking.clear()
                self._leaving.clear()
                self._urgent = False
            try:
                scripts = settings.server(self._consumer.app)
                self._ask_for(asking, scripts, listener_of(scripts))
                _give_up(leaving, scripts, listener_of(scripts))
            except Exception:
                logger.exception("waking failed, so the backoff serves")
            if stopped:
                return

    def _ask_for(self, waiters: list[Waiter], scripts: Scripts, listener: Listener) -> None:
        """All in one round trip."""
        places = {waiter: waiter.take_place(listener) for waiter in waiters if not waiter.is_over}
        for waiter, place in places.items():
            listener.add(scripts, place, self._ears_of(waiter))
        if not listener.listening.is_set():
            return  # when it listens, all ask again
        for waiter, answer in zip(places, scripts.wait(places.values()), strict=True):
            if isinstance(answer, Exception):
                self._in_loop(waiter.on_no_answer)
            else:
                self._in_loop(waiter.on_answer, answer)

    def _ears_of(self, waiter: Waiter) -> Ears:
        handlers = (waiter.on_turn, waiter.on_next, waiter.on_doubt)
        return Ears(*(partial(self._in_loop, handler) for handler in handlers))

    def _in_loop(self, do: Callable[..., None], *args: Any) -> None:
        hub = self._consumer.hub
        if hub is not None:
            hub.call_soon(self._guarded, do, *args)
        else:  # greenlets have no loop, and need none
            self._guarded(do, *args)

    def _guarded(self, do: Callable[..., None], *args: Any) -> None:
        """As Celery's timer does: only the broker's errors are the consumer's business."""
        try:
            do(*args)
        except self._consumer.connection_errors:
            raise
        except Exception:
            logger.exception("waking failed, so the backoff serves")


def _give_up(waiters: list[Waiter], scripts: Scripts, listener: Listener) -> None:
    for waiter in waiters:
        if waiter.place is not None:
            listener.discard(waiter.place)
            try:
                scripts.give_up(waiter.place)
            except LockUnavailable as error:
                who = about(error.key, waiter.request.rlock_owner, waiter.request.id)
                logger.debug("could not give up the place of %s: %s", waiter.request.id, error, extra=who)
