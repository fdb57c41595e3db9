"""What a lock adds to a task: to its publisher, and to the worker that runs it."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

from celery import Celery

from benchmarks.peers_app import store
from tests.support.workers import Worker

#: Short turns, many of them, and the quick ones count: other programs on this machine make some turns slow.
TASKS, SECONDS = 30, 75
FEW, SLOW = 3, 100_000

_numbers = count(1)
_libc = ctypes.CDLL(None)


class Cost(NamedTuple):
    """Microseconds a task."""

    publish: float
    run: float
    cpu: float  # of publisher, worker and pool child, what Celery itself needs included


def measure(fleet: Mapping[str, tuple[Celery, Worker]]) -> dict[str, Cost]:
    """Each variant has its turn in each round; keys are never contended."""
    turns = {variant: [_first(app, worker)] for variant, (app, worker) in fleet.items()}
    quick = [variant for variant, costs in turns.items() if costs[0].run < SLOW]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for variant in quick:
            turns[variant].append(turn(*fleet[variant], TASKS))
    return {variant: _typical(costs) for variant, costs in turns.items()}


def _first(app: Celery, worker: Worker) -> Cost:
    turn(app, worker, FEW)  # warms up
    return turn(app, worker, FEW)


def turn(app: Celery, worker: Worker, tasks: int) -> Cost:
    """The worker has one slot, which a task keeps closed until all are published."""
    name = f"turn-{next(_numbers)}"
    app.tasks["gate"].delay(name)
    _await(f"{name}:closed")
    processes = (os.getpid(), worker.pid, *worker.children())
    used, start = _cpu(processes), time.perf_counter()
    for number in range(tasks):
        app.tasks["nothing"].delay(f"{name}-{number}")
    published = time.perf_counter()
    app.tasks["end"].delay(name)
    opened = time.perf_counter()
    store().rpush(f"{name}:open", 1)
    _await(f"{name}:ended")
    taken = (published - start, time.perf_counter() - opened, _cpu(processes) - used)
    return Cost(*(seconds / tasks * 1e6 for seconds in taken))


def _cpu(processes: Iterable[int]) -> float:
    """Seconds, by a clock of the kernel's for each process: what psutil tells comes in steps of 10 ms."""
    clock = ctypes.c_int()
    used = 0.0
    for pid in processes:
        if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)):
            raise AssertionError(f"process {pid} is gone")
        used += time.clock_gettime(clock.value)
    return used


def _await(key: str) -> None:
    if store().blpop([key], timeout=60) is None:
        raise AssertionError(f"waited a minute in vain for {key}")


def _typical(costs: list[Cost]) -> Cost:
    """What a fifth of the turns did not need."""
    if len(costs) == 1:
        return costs[0]
    return Cost(*(statistics.quantiles(figures, n=5)[0] for figures in zip(*costs[1:], strict=True)))
