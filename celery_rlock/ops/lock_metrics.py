"""The Prometheus metrics of locks: counted from events, and surveyed in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from celery_rlock import events
from celery_rlock.ops.task_labels import TaskLabels, one_of
from celery_rlock.options import BUSY_ACTIONS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from celery_rlock.ops.survey import Survey

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_BUSY_ACTIONS = (*BUSY_ACTIONS, "wait")
_UNAVAILABLE_ACTIONS = ("retry", "fail", "run")


class EventMetrics:
    """What the workers' events tell. One that cannot be understood is not counted."""

    def __init__(self, registry: CollectorRegistry, labels: TaskLabels) -> None:
        self._labels = labels

        def counter(name: str, about: str, *more: str) -> Counter:
            return Counter(f"celery_rlock_{name}", about, ["task", *more], registry=registry)

        def histogram(name: str, about: str) -> Histogram:
            return Histogram(f"celery_rlock_{name}", about, ["task"], buckets=_BUCKETS, registry=registry)

        self._acquisitions = counter("acquisitions", "Runs that began under their lock.")
        self._busy = counter("busy", "Locks found busy, by what followed.", "action")
        self._skipped = counter("skipped", "Tasks skipped because their lock was busy.")
        self._lost = counter("lost", "Locks lost while their task ran.")
        self._unavailable = counter("unavailable", "Lock server not reached, by what followed.", "action")
        self._wait = histogram("wait_seconds", "From the first busy answer to the lock; 0 for a free one.")
        self._hold = histogram("hold_seconds", "From the taking of a lock to its release.")

    def begin_at_zero(self, tasks: Iterable[str]) -> None:
        """Show what has not happened yet: Prometheus sees no increase in what begins at one."""
        for task in map(self._labels.of, tasks):
            for counter in (self._acquisitions, self._skipped, self._lost):
                counter.labels(task)
            for action in _UNAVAILABLE_ACTIONS:
                self._unavailable.labels(task, action)

    def handlers(self) -> dict[str, Any]:
        """For Celery's event receiver."""
        return {
            events.ACQUIRED: self._on_acquired,
            events.BUSY: lambda event: self._busy.labels(*self._with_action(event, _BUSY_ACTIONS)).inc(),
            events.SKIPPED: lambda event: self._skipped.labels(self._task(event)).inc(),
            events.RELEASED: lambda event: self._hold.labels(self._task(event)).observe(
                _seconds(event, "held")
            ),
            events.LOST: lambda event: self._lost.labels(self._task(event)).inc(),
            events.UNAVAILABLE: self._on_unavailable,
        }

    def _on_acquired(self, event: dict[str, Any]) -> None:
        self._acquisitions.labels(self._task(event)).inc()
        self._wait.labels(self._task(event)).observe(_seconds(event, "waited"))

    def _on_unavailable(self, event: dict[str, Any]) -> None:
        self._unavailable.labels(*self._with_action(event, _UNAVAILABLE_ACTIONS)).inc()

    def _with_action(self, event: dict[str, Any], actions: Iterable[str]) -> tuple[str, str]:
        return self._task(event), one_of(event.get("action"), tuple(actions))

    def _task(self, event: dict[str, Any]) -> str:
        return self._labels.of(event.get("name") or None)


class SurveyMetrics(Collector):
    """What was counted in Redis last; nothing while that does not answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._last: Survey | None = None

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"celery_rlock_exporter_{name}", about, registry=registry)

        self._complete = gauge("survey_complete", "1 if the last survey of Redis counted all locks.")
        self._seconds = gauge("survey_duration_seconds", "How long the last survey of Redis took.")
        self._at = gauge("survey_timestamp_seconds", "When Redis answered a survey last.")
        registry.register(self)

    def show(self, survey: Survey | None) -> None:
        """Show this one from now on; None: Redis did not answer."""
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
    prefix = "celery_rlock_"
    return (
        GaugeMetricFamily(
            f"{prefix}locks", "Locks that are held, queued or resting.", labels=["task", "state"]
        ),
        GaugeMetricFamily(
            f"{prefix}waiters", "Who waits for a lock, by the task that has it.", labels=["task"]
        ),
        GaugeMetricFamily(
            f"{prefix}oldest_hold_seconds", "How long the oldest lock is held.", labels=["task"]
        ),
    )


def _seconds(event: dict[str, Any], name: str) -> float:
    return max(0.0, float(event[name]))
