"""The Prometheus metrics of locks: counted from the workers' events, and surveyed in Redis.

Labels are bounded: no key is a label, and only tasks that the app knows are. Needs the extra `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from time import time
from typing import Any

from celery import Celery
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_rlock.cli.survey import Survey, survey
from celery_rlock.options.plan import plan_of
from celery_rlock.options.validation import BUSY_ACTIONS
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.telemetry import events

#: The label of a task that the app does not know, or of one too many.
OTHER = "other"

#: The label of a lock that no task holds: an `RLock` in other code.
NO_TASK = "RLock"

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_BUSY_ACTIONS = (*BUSY_ACTIONS, "wait")
_UNAVAILABLE_ACTIONS = ("retry", "fail", "run")


class LockMetrics:
    """All metrics of an app's locks in one registry. Events are counted; the last survey is shown."""

    def __init__(self, app: Celery, *, max_tasks: int) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the stored series
        app.loader.import_default_modules()
        self.registry = CollectorRegistry()
        self.labels = TaskLabels(app.tasks, max_tasks)
        self.events = EventMetrics(self.registry, self.labels)
        self.events.begin_at_zero(
            sorted(name for name, task in app.tasks.items() if plan_of(task) is not None)
        )
        self.surveys = SurveyMetrics(self.registry)
        about = "1 while the exporter receives the workers' events."
        self.connected = Gauge("celery_rlock_exporter_events_connected", about, registry=self.registry)

    def wsgi_app(self) -> Callable[..., Iterable[bytes]]:
        """Answers a scrape with all metrics."""
        return make_wsgi_app(self.registry)

    def survey(self, lock_server: RedisLockServer, longest: float, keep: int = 0) -> Survey:
        """Survey the locks and show the result. If Redis does not answer, show nothing and raise."""
        try:
            found = survey(lock_server, self.labels.of, longest, keep)
        except Exception:
            self.surveys.show(None)
            raise
        self.surveys.show(found)
        return found


class TaskLabels:
    """Label values for tasks: at most `most` names of known tasks, and `other` for the rest."""

    def __init__(self, known: Collection[str], most: int) -> None:
        self._known, self._most = known, most
        self._labels: set[str] = set()

    def of(self, task: object) -> str:
        if task == "":
            return NO_TASK
        if not isinstance(task, str) or task not in self._known:
            return OTHER
        if task not in self._labels and len(self._labels) < self._most:
            self._labels.add(task)
        return task if task in self._labels else OTHER


class EventMetrics:
    """Counts the workers' events."""

    def __init__(self, registry: CollectorRegistry, labels: TaskLabels) -> None:
        self._labels = labels

        def counter(name: str, about: str, *more: str) -> Counter:
            return Counter(f"celery_rlock_{name}", about, ["task", *more], registry=registry)

        def histogram(name: str, about: str) -> Histogram:
            return Histogram(f"celery_rlock_{name}", about, ["task"], buckets=_BUCKETS, registry=registry)

        self._acquisitions = counter("acquisitions", "Runs that started with their lock.")
        self._busy = counter(
            "busy", "Attempts that found the lock busy, by what the task did then.", "action"
        )
        self._skipped = counter("skipped", "Tasks skipped because their lock was busy.")
        self._duplicates = counter(
            "duplicates", "Calls that were not published because the same task was queued or running."
        )
        self._superseded = counter("superseded", "Queued calls whose place a later call has taken.")
        self._replaced = counter("replaced", "Calls that a newer call replaced, while they ran or waited.")
        self._lost = counter("lost", "Locks lost while their task ran.")
        self._unavailable = counter(
            "unavailable", "Attempts that did not reach the lock server, by what the task did then.", "action"
        )
        self._wait = histogram(
            "wait_seconds", "Seconds from the first busy answer to the lock; 0 if the lock was free."
        )
        self._hold = histogram("hold_seconds", "Seconds from acquiring a lock to releasing it.")

    def begin_at_zero(self, tasks: Iterable[str]) -> None:
        """Create the counters of these tasks: Prometheus sees no increase in a series that begins at 1."""
        for task in map(self._labels.of, tasks):
            for counter in (
                self._acquisitions,
                self._skipped,
                self._duplicates,
                self._superseded,
                self._replaced,
                self._lost,
            ):
                counter.labels(task)
            for action in _UNAVAILABLE_ACTIONS:
                self._unavailable.labels(task, action)

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        """One function for each type of event, for Celery's event receiver."""
        return {
            events.ACQUIRED: self._on_acquired,
            events.BUSY: self._on_busy,
            events.SKIPPED: self._on_skipped,
            events.RELEASED: self._on_released,
            events.LOST: self._on_lost,
            events.UNAVAILABLE: self._on_unavailable,
            events.DUPLICATE: self._on_duplicate,
            events.SUPERSEDED: self._on_superseded,
            events.REPLACED: self._on_replaced,
        }

    def _on_acquired(self, event: dict[str, Any]) -> None:
        waited = events.seconds_in(event, "waited")
        self._acquisitions.labels(self._task(event)).inc()
        self._wait.labels(self._task(event)).observe(waited)

    def _on_busy(self, event: dict[str, Any]) -> None:
        self._busy.labels(self._task(event), _action(event, _BUSY_ACTIONS)).inc()

    def _on_skipped(self, event: dict[str, Any]) -> None:
        self._skipped.labels(self._task(event)).inc()

    def _on_duplicate(self, event: dict[str, Any]) -> None:
        self._duplicates.labels(self._task(event)).inc()

    def _on_superseded(self, event: dict[str, Any]) -> None:
        self._superseded.labels(self._task(event)).inc()

    def _on_replaced(self, event: dict[str, Any]) -> None:
        self._replaced.labels(self._task(event)).inc()

    def _on_released(self, event: dict[str, Any]) -> None:
        self._hold.labels(self._task(event)).observe(events.seconds_in(event, "held"))

    def _on_lost(self, event: dict[str, Any]) -> None:
        self._lost.labels(self._task(event)).inc()

    def _on_unavailable(self, event: dict[str, Any]) -> None:
        self._unavailable.labels(self._task(event), _action(event, _UNAVAILABLE_ACTIONS)).inc()

    def _task(self, event: dict[str, Any]) -> str:
        return self._labels.of(event.get("name") or None)


def _action(event: dict[str, Any], actions: Collection[str]) -> str:
    action = event.get("action")
    return action if isinstance(action, str) and action in actions else OTHER


class SurveyMetrics(Collector):
    """Shows the last survey; nothing while Redis does not answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._last: Survey | None = None

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"celery_rlock_exporter_{name}", about, registry=registry)

        self._complete = gauge("survey_complete", "1 if the last survey of Redis counted all locks.")
        self._seconds = gauge("survey_duration_seconds", "Seconds that the last survey of Redis took.")
        self._at = gauge("survey_timestamp_seconds", "Time of the last survey that Redis answered.")
        registry.register(self)

    def show(self, survey: Survey | None) -> None:
        """Show this survey from now on. None: Redis did not answer."""
        self._last = survey
        self._complete.set(survey is not None and survey.is_complete)
        if survey is not None:
            self._seconds.set(survey.seconds)
            self._at.set(time())

    def describe(self) -> Iterable[Metric]:
        return _families()

    def collect(self) -> Iterator[Metric]:
        survey, (locks, waiters, oldest) = self._last, _families()
        if survey is not None:
            for (task, state), count in survey.locks.items():
                locks.add_metric([task, state], count)
            for task, count in survey.waiters.items():
                waiters.add_metric([task], count)
            for task, seconds in survey.oldest.items():
                oldest.add_metric([task], seconds)
        yield from (locks, waiters, oldest)


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    def family(name: str, about: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"celery_rlock_{name}", about, labels=labels)

    return (
        family("locks", "Locks that are held, queued or resting.", "task", "state"),
        family("waiters", "Tasks that wait for a lock, by the task that holds it.", "task"),
        family("oldest_hold_seconds", "Seconds that the oldest lock has been held.", "task"),
    )
