"""The exporter: events and surveys in, Prometheus metrics out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics

from celery_rlock import settings
from celery_rlock.core.log import logger
from celery_rlock.ops.lock_metrics import EventMetrics, SurveyMetrics
from celery_rlock.ops.survey import survey
from celery_rlock.ops.task_labels import TaskLabels

if TYPE_CHECKING:
    from celery import Celery

_PAUSE_AFTER_ERROR = 1.0


class Exporter:
    """Fills its registry from two threads: one hears events and connects again, one surveys Redis."""

    def __init__(self, app: Celery, *, interval: float, most_tasks: int) -> None:
        self._app, self._interval = app, interval
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double what is stored
        self.registry = CollectorRegistry()
        app.loader.import_default_modules()
        self._labels = TaskLabels(app.tasks, most_tasks)
        self._events = EventMetrics(self.registry, self._labels)
        self._events.begin_at_zero(_locked_tasks(app))
        self._surveys = SurveyMetrics(self.registry)
        about = "1 while the exporter hears the workers' events."
        self._connected = Gauge("celery_rlock_exporter_events_connected", about, registry=self.registry)
        self._threads = [self._thread(self._listen), self._thread(self._survey)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_healthy(self) -> bool:
        """Whether it does its work; that a server is away is told by metrics, and no reason to restart."""
        return all(thread.is_alive() for thread in self._threads)

    def _thread(self, turn: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            while True:
                turn()

        return threading.Thread(target=run, name=f"rlock-exporter{turn.__name__}", daemon=True)

    def _listen(self) -> None:
        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1)
                self._receiver(connection).capture(wakeup=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, only a new connection helps
            logger.warning("no events, connecting again: %r", error)
        self._connected.set(0)
        _pause(_PAUSE_AFTER_ERROR)

    def _receiver(self, connection: Any) -> Any:
        handlers = {kind: _forgiving(handler) for kind, handler in self._events.handlers().items()}
        receiver: Any = self._app.events.Receiver(connection, handlers=handlers, routing_key="lock.#")
        receiver.on_consume_ready = lambda *_, **__: self._connected.set(1)
        return receiver

    def _survey(self) -> None:
        try:
            self._surveys.show(survey(settings.server(self._app), self._labels.of, self._interval))
        except Exception as error:  # noqa: BLE001 - the next survey may succeed
            self._surveys.show(None)
            logger.warning("could not survey the locks, trying again: %r", error)
        _pause(self._interval)


def _locked_tasks(app: Celery) -> list[str]:
    return sorted(name for name, task in app.tasks.items() if getattr(task, "_lock_plan", None) is not None)


def _forgiving(handler: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """An event that somebody else made up does not end the hearing of the others."""

    def handle(event: dict[str, Any]) -> None:
        try:
            handler(event)
        except (KeyError, TypeError, ValueError) as error:
            logger.debug("an event is not counted: %r in %r", error, event)

    return handle


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
