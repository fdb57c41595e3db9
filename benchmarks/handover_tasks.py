"""Tasks on real workers use one key in turn: how long is a hand-over, and what does waiting cost?"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, NamedTuple

from benchmarks import handover_app as proj
from celery_rlock import settings
from celery_rlock.core.lock import ReentrantLock
from tests.support.workers import Worker

WORK = 0.05
WORKERS, SLOTS = 2, 4
SETTLING = 1.5
LARGEST = 100  # tasks for one key

#: Seconds. An execution that has no answer from the lock after this time only waits in its slot.
AN_ANSWER = 0.1

#: How late a plain sleep ended, in milliseconds: the delay that this machine adds to everything.
late: list[float] = []

_numbers = count(1)


@dataclass(frozen=True)
class Variant:
    name: str
    task: Any
    largest: int  # the largest number of tasks for one key that does not take too long
    waking: bool = True

    @property
    def is_slow(self) -> bool:
        return self.largest < LARGEST

    @property
    def queue(self) -> str:
        return f"handover-{VARIANTS.index(self)}"


VARIANTS = (
    Variant("LockedTask", proj.locked, LARGEST),
    Variant("redis.lock.Lock, blocking", proj.blocking, LARGEST),
    Variant("redis.lock.Lock, retry(countdown=1)", proj.retrying, 30),
    Variant("LockedTask, not woken: backoff alone", proj.locked, 10, waking=False),
)


class Execution(NamedTuple):
    came: float  # when it got its slot
    answered: float  # when it got the lock, or found the lock busy
    end: float  # when its work ended, or when it left its slot


@dataclass(frozen=True)
class Turn:
    """Some tasks that used one key. `settled`: all of them had found the key busy before the first run."""

    tasks: int
    settled: bool
    seconds: float  # from the first publish, or the release, to the end of the last run's work
    handovers: list[float]  # in milliseconds
    deliveries: int
    slots: int  # the largest number of slots whose executions only waited
    without_lock: float  # seconds in slots without the lock, including failed attempts

    @property
    def stretch(self) -> float:
        """The time that the tasks took, as a multiple of the time that they worked."""
        return self.seconds / (self.tasks * WORK)


class Fleet:
    """The workers of one variant."""

    def __init__(self, variant: Variant, workers: Sequence[Worker]) -> None:
        self._variant, self._workers = variant, workers

    def turn(self, tasks: int, *, settle: bool = False, seconds: float = WORK) -> Turn:
        """Publish so many tasks for a new key. With `settle`, the benchmark itself holds the key first."""
        task, key = self._variant.task, f"turn-{next(_numbers)}"
        lock = self._lock(key)
        before, begun = self._deliveries(), time.time()
        if settle:
            lock.acquire()
        for _ in range(tasks):
            task.apply_async((key, seconds), queue=self._variant.queue)
        if settle:
            time.sleep(SETTLING)
            begun = time.time()
            lock.release()
        await_runs(key, tasks)
        runs = sorted(records("runs", key), key=lambda run: run.answered)
        attempts = records("attempts", key)
        waits = [(came + AN_ANSWER, answered) for came, answered, _ in runs + attempts]
        starts, ends = [run.answered for run in runs], [run.end for run in runs]
        return Turn(
            tasks,
            settle,
            ends[-1] - begun,
            handovers(starts, [begun, *ends[:-1]]) if settle else handovers(starts[1:], ends[:-1]),
            self._deliveries() - before,
            most_at_once([wait for wait in waits if wait[0] < wait[1]]),
            sum(start - came for came, start, _ in runs) + sum(gone - came for came, _, gone in attempts),
        )

    def _lock(self, key: str) -> Any:
        if self._variant.task is proj.locked:
            return ReentrantLock(key, lock_server=settings.server(proj.app), ttl=proj.TTL)
        return proj.store().lock(key, timeout=proj.TTL)

    def _deliveries(self) -> int:
        return sum(worker.log.count("] received") for worker in self._workers)


@contextmanager
def fleets(variants: Sequence[Variant] = VARIANTS) -> Iterator[dict[Variant, Fleet]]:
    """Ready workers for each variant. All are started at the same time."""
    with ExitStack() as stack:
        started: dict[Variant, list[Worker]] = {}
        for variant in variants:
            env = {"HANDOVER_WAKING": "on" if variant.waking else "off"}
            started[variant] = [
                Worker("benchmarks.handover_app:app", concurrency=SLOTS, queues=(variant.queue,), env=env)
                for _ in range(WORKERS)
            ]
            for worker in started[variant]:
                worker.launch()
                stack.enter_context(worker)
        for workers in started.values():
            for worker in workers:
                worker.await_ready()
        ready = {variant: Fleet(variant, workers) for variant, workers in started.items()}
        for fleet in ready.values():
            fleet.turn(2 * WORKERS * SLOTS, seconds=0.01)  # warm-up
        yield ready


def await_runs(key: str, tasks: int, timeout: float = 300) -> None:
    end = time.monotonic() + timeout
    while (done := proj.store().llen(f"runs:{key}")) < tasks:
        if time.monotonic() > end:
            raise AssertionError(f"{done} of {tasks} tasks have run")
        before = time.monotonic()
        time.sleep(WORK)
        late.append((time.monotonic() - before - WORK) * 1000)


def records(what: str, key: str) -> list[Execution]:
    return [Execution(*json.loads(entry)) for entry in proj.store().lrange(f"{what}:{key}", 0, -1)]


def handovers(starts: Sequence[float], ends: Sequence[float]) -> list[float]:
    gaps = [(start - end) * 1000 for start, end in zip(starts, ends, strict=True)]
    if min(gaps) < 0:
        raise AssertionError(f"two runs held the lock at the same time, for {-min(gaps)} ms")
    return gaps


def most_at_once(intervals: list[tuple[float, float]]) -> int:
    moments = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    return max(accumulate(step for _, step in moments), default=0)
