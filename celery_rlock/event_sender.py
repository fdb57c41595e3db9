"""Sends Celery events from where tasks run, without making any of them wait for the broker."""

from __future__ import annotations

import os
import threading
from collections import deque
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.events.event import group_from
from celery.signals import worker_process_shutdown, worker_shutdown

from celery_rlock.core.log import logger

if TYPE_CHECKING:
    from celery import Celery

_MOST_WAITING = 1000
_TIME_TO_GATHER = 0.1
_PAUSE_AFTER_ERROR = 1.0
_TIME_TO_LEAVE = 1.0


class Event(NamedTuple):
    app: Celery
    hostname: str
    type: str
    fields: dict[str, Any]


class EventSender:
    """One thread and one connection a process, from the first event on.

    While the broker is away the newest thousand events are kept. What a killed process had not sent is gone.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child has neither its parent's thread nor its connection."""
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque(maxlen=_MOST_WAITING)
        self._sending = self._in_haste = False
        self._thread: threading.Thread | None = None
        self._dispatchers: dict[tuple[Celery, str], Any] = {}

    def send(self, app: Celery, hostname: str, type_: str, fields: dict[str, Any]) -> None:
        """Have it sent, soon; returns at once."""
        event = Event(app, hostname, type_, {"timestamp": time(), **fields})
        with self._changed:
            if not self._waiting:
                self._changed.notify_all()
            self._waiting.append(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlock-events", daemon=True)
                self._thread.start()

    def flush(self, **_: Any) -> None:
        """Before a process ends, its last events get a second."""
        end = monotonic() + _TIME_TO_LEAVE
        with self._changed:
            self._in_haste = True
            self._changed.notify_all()
            while (self._waiting or self._sending) and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            self._in_haste = False

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._changed.wait_for(lambda: self._in_haste, _TIME_TO_GATHER)
                batch, self._sending = list(self._waiting), True
                self._waiting.clear()
            is_done = self._publish(batch)
            with self._changed:
                self._sending = False
                if not is_done:
                    self._waiting = deque([*batch, *self._waiting], maxlen=_MOST_WAITING)
                self._changed.notify_all()
            if not is_done:
                threading.Event().wait(_PAUSE_AFTER_ERROR)

    def _publish(self, batch: list[Event]) -> bool:
        """Whether nothing is left to do: it is sent, or two connections that worked did not take it."""
        for _ in range(2):
            try:
                dispatchers = {self._dispatcher(event) for event in batch}
            except Exception as error:  # noqa: BLE001 - whatever it is, it is no task's business
                logger.debug("no broker for %d events, trying again: %r", len(batch), error)
                return False
            try:
                for event in batch:
                    self._dispatcher(event).send(event.type, **event.fields)
                for dispatcher in dispatchers:
                    dispatcher.flush(errors=False)
            except Exception as error:  # noqa: BLE001 - the same
                logger.debug("could not send %d events: %r", len(batch), error)
                self._disconnect()
            else:
                return True
        if len(batch) > 1:
            for event in batch:
                self._publish([event])
        return True

    def _dispatcher(self, event: Event) -> Any:
        """A connection of its own: the tasks' pool is not ours to exhaust while the broker is away.

        What it is given it sends in one message, when it is flushed; as Celery's own events are.
        """
        place = event.app, event.hostname
        if place not in self._dispatchers:
            connection = event.app.connection_for_write()
            connection.ensure_connection(max_retries=1)
            group = [group_from(event.type)]
            self._dispatchers[place] = event.app.events.Dispatcher(
                connection,
                hostname=event.hostname,
                buffer_while_offline=False,
                buffer_group=group,
                buffer_limit=2 * _MOST_WAITING,
            )
        return self._dispatchers[place]

    def _disconnect(self) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.close()
            dispatcher.connection.collect(_TIME_TO_LEAVE)
        self._dispatchers.clear()


sender = EventSender()
os.register_at_fork(after_in_child=sender.reset)
worker_process_shutdown.connect(sender.flush, weak=False, dispatch_uid="celery_rlock.events")
worker_shutdown.connect(sender.flush, weak=False, dispatch_uid="celery_rlock.events")
