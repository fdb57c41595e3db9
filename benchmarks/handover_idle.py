"""A burst of waiters on one key, and what the worker's parent costs when all of them are gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks import handover_app as proj
from benchmarks.handover_tasks import Figures, deliveries, fleet, turn
from tests.support.workers import Worker

WATCHED = 10.0
UNTIL_QUIET = 6.0  # the listener of a process ends when there was nobody to listen for

Cpu = tuple[float, ...]


@dataclass
class Burst:
    deliveries: float  # a completed task
    idle: Cpu  # CPU seconds of each parent
    plain_idle: Cpu  # the same, of workers without a locked task


def measure(waiters: int) -> Burst:
    with fleet() as workers, fleet("plain", queues=("nothing",)) as plain:
        turn(proj.locked, waiters, Figures())
        received = deliveries(workers)
        time.sleep(UNTIL_QUIET)
        idle = cpu_over(WATCHED, [*workers, *plain])
    return Burst(received / waiters, idle[: len(workers)], idle[len(workers) :])


def cpu_over(seconds: float, workers: Sequence[Worker]) -> Cpu:
    """CPU seconds of the workers' parents."""
    before = [_cpu(worker) for worker in workers]
    time.sleep(seconds)
    return tuple(_cpu(worker) - then for worker, then in zip(workers, before, strict=True))


def _cpu(worker: Worker) -> float:
    times = psutil.Process(worker.pid).cpu_times()
    return times.user + times.system
