"""Tasks that pass one key on, on real workers: how long that takes, and what it costs to wait."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any, NamedTuple

from benchmarks import handover_app as proj
from celery_rlock import settings
from celery_rlock.core.lock import RLock
from tests.support.workers import Worker

WORK = 0.05
WORKERS, SLOTS = 2, 4
SETTLING = 2.0

#: An execution that has been in its slot for so long without knowing whether it has the lock only waits.
AN_ANSWER = 0.1

#: By how many milliseconds a plain sleep ended late meanwhile: what this machine adds to everything.
late: list[float] = []

_numbers = count(1)


@dataclass(frozen=True)
class Variant:
    name: str
    task: Any
    waking: bool = True


VARIANTS = (
    Variant("this lock", proj.locked),
    Variant("this lock, backoff alone", proj.locked, waking=False),
    Variant("Lock, retry(countdown=1)", proj.retrying),
    Variant("Lock, blocking", proj.blocking),
)


class Execution(NamedTuple):
    came: float  # into its slot
    answered: float  # and started, or found the lock busy
    end: float  # of its work, or of its way back to the broker


@dataclass
class Figures:
    """What was measured of one variant."""

    at_once: list[float] = field(default_factory=list)  # hand-overs in ms, all tasks published at once
    settled: list[float] = field(default_factory=list)  # the same, when all had found the key busy before
    runs: int = 0
    deliveries: int = 0
    slots: int = 0  # the most that were held at one moment by executions which only waited
    without_lock: float = 0.0  # seconds that slots were held by executions without the lock, attempts too
    listeners: int = 0  # the most processes that could be told of a release


@contextmanager
def fleet(app: str = "app", workers: int = WORKERS, **options: Any) -> Iterator[list[Worker]]:
    """Workers that started side by side, and are all ready."""
    started = []
    with ExitStack() as stack:
        for _ in range(workers):
            worker = Worker(f"benchmarks.handover_app:{app}", concurrency=SLOTS, **options)
            worker.launch()
            started.append(stack.enter_context(worker))
        for worker in started:
            worker.await_ready()
        yield started


def measure(variant: Variant, tasks: int, figures: Figures) -> None:
    """Two turns, on workers that have done nothing else."""
    with fleet(env={"HANDOVER_WAKING": "on" if variant.waking else "off"}) as workers:
        turn(variant.task, 2 * WORKERS * SLOTS, Figures(), seconds=0.01)  # warms up
        before = deliveries(workers)
        figures.at_once += turn(variant.task, tasks, figures)
        figures.settled += turn(variant.task, tasks, figures, settle=True)
        figures.deliveries += deliveries(workers) - before
    woken = variant.task is proj.locked and variant.waking
    if woken != bool(figures.listeners):
        raise AssertionError(f"{variant.name}: {figures.listeners} processes listened for released locks")


def turn(
    task: Any, tasks: int, figures: Figures, *, seconds: float = WORK, settle: bool = False
) -> list[float]:
    """The hand-overs of one key, in milliseconds; to settle the tasks, the driver holds it first."""
    key = f"turn-{next(_numbers)}"
    lock = lock_of(task, key)
    released = []
    if settle:
        lock.acquire()
    for _ in range(tasks):
        task.delay(key, seconds)
    if settle:
        time.sleep(SETTLING)
        released = [time.time()]
        lock.release()
    await_runs(key, tasks, figures)
    runs = sorted(records("runs", key), key=lambda run: run.answered)
    note_waiting(runs, records("attempts", key), figures)
    figures.runs += tasks
    starts, ends = [run.answered for run in runs], released + [run.end for run in runs]
    return handovers(starts if settle else starts[1:], ends[:-1])


def lock_of(task: Any, key: str) -> Any:
    if task is proj.locked:
        return RLock(key, scripts=settings.server(proj.app), ttl=proj.TTL)
    return proj.store().lock(key, timeout=proj.TTL)


def await_runs(key: str, tasks: int, figures: Figures, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while (done := proj.store().llen(f"runs:{key}")) < tasks:
        if time.monotonic() > end:
            raise AssertionError(f"{done} of {tasks} tasks have run")
        figures.listeners = max(figures.listeners, len(proj.store().pubsub_channels("rlock:wake:*")))
        before = time.monotonic()
        time.sleep(WORK)
        late.append((time.monotonic() - before - WORK) * 1000)


def records(what: str, key: str) -> list[Execution]:
    return [Execution(*json.loads(entry)) for entry in proj.store().lrange(f"{what}:{key}", 0, -1)]


def handovers(starts: Sequence[float], ends: Sequence[float]) -> list[float]:
    gaps = [(start - end) * 1000 for start, end in zip(starts, ends, strict=True)]
    if min(gaps) < 0:
        raise AssertionError(f"two held the lock at once, {-min(gaps)} ms long")
    return gaps


def note_waiting(runs: list[Execution], attempts: list[Execution], figures: Figures) -> None:
    waits = [(came + AN_ANSWER, answered) for came, answered, _ in runs + attempts]
    figures.slots = max(figures.slots, most_at_once([wait for wait in waits if wait[0] < wait[1]]))
    figures.without_lock += sum(start - came for came, start, _ in runs)
    figures.without_lock += sum(gone - came for came, _, gone in attempts)


def most_at_once(intervals: list[tuple[float, float]]) -> int:
    moments = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    return max(accumulate(step for _, step in moments), default=0)


def deliveries(workers: Sequence[Worker]) -> int:
    return sum(worker.log.count("] received") for worker in workers)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
