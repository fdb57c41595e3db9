"""Thousands of waiters on many keys: how soon all have run, and what they cost while they wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import psutil

from benchmarks import handover_app as proj
from benchmarks.handover_idle import WATCHED, cpu_over
from benchmarks.handover_tasks import SLOTS, deliveries, fleet, lock_of, records
from celery_rlock import settings
from tests.support.processes import wait_until
from tests.support.workers import Worker

TASKS, KEYS, WORKERS = 5000, 50, 4
WORK = 0.01


def measure() -> None:
    keys = [f"many-{number}" for number in range(KEYS)]
    with fleet(workers=WORKERS) as workers:
        print(f"{TASKS} tasks of {WORK * 1000:.0f} ms on {KEYS} keys; {WORKERS} workers with {SLOTS} slots\n")
        _print("RSS of the parents, new", _rss(workers), "MB")
        with held(keys):
            published = time.time()
            for number in range(TASKS):
                proj.locked.delay(keys[number % KEYS], WORK)
            wait_until(lambda: waiting(keys) >= TASKS, timeout=300, what="all tasks to wait", every=0.5)
            print(f"{'until all wait':44} {time.time() - published:6.1f} s")
            cpu = cpu_over(WATCHED, workers)
            _print(f"CPU of the parents in {WATCHED:.0f} s, all waiting", cpu, "s", digits=2)
            _print("RSS of the parents, all waiting", _rss(workers), "MB")
            released = time.time()
        wait_until(lambda: done(keys) >= TASKS, timeout=500, what="the last task", every=0.2)
        print_drain(released, keys)
        print(f"{'deliveries a task':44} {deliveries(workers) / TASKS:6.2f}")
        _print("RSS of the parents, all done", _rss(workers), "MB")


@contextmanager
def held(keys: Sequence[str]) -> Iterator[None]:
    locks = [lock_of(proj.locked, key) for key in keys]
    for lock in locks:
        lock.acquire()
    yield
    for lock in locks:
        lock.release()


def waiting(keys: Sequence[str]) -> int:
    return sum(proj.store().zcard(settings.server(proj.app).name(key).waiters) for key in keys)


def done(keys: Sequence[str]) -> int:
    return sum(proj.store().llen(f"runs:{key}") for key in keys)


def print_drain(released: float, keys: Sequence[str]) -> None:
    runs = {key: sorted(records("runs", key), key=lambda run: run.answered) for key in keys}
    overlaps = sum(
        after.answered < before.end for of_key in runs.values() for before, after in pairwise(of_key)
    )
    ends = sorted(run.end for of_key in runs.values() for run in of_key)
    longest = max(after - before for before, after in pairwise([released, *ends]))
    print(f"{'until all are done':44} {ends[-1] - released:6.1f} s")
    print(f"{'longest time without a completed task':44} {longest:6.2f} s")
    print(f"{'overlaps; runs beyond the tasks':44} {overlaps:6}; {len(ends) - TASKS}")


def _rss(workers: Sequence[Worker]) -> list[float]:
    return [psutil.Process(worker.pid).memory_info().rss / 1e6 for worker in workers]


def _print(what: str, figures: Sequence[float], unit: str, digits: int = 0) -> None:
    print(f"{what:44} {'  '.join(f'{figure:6.{digits}f}' for figure in figures)} {unit}")
