"""What a lock adds to a task: to its publisher, and to the worker that runs it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from celery import Celery

from benchmarks.peers_app import store

TASKS = 100
ROUNDS = 11
FEW = 3
SLOW = 100_000

_numbers = count(1)


class Cost(NamedTuple):
    """Microseconds a task."""

    publish: float
    run: float


def measure(apps: Mapping[str, Celery]) -> dict[str, Cost]:
    """The medians over rounds in which each variant has its turn; keys are never contended."""
    slow = {}
    for variant, app in apps.items():
        turn(app, FEW)  # warms up
        cost = turn(app, FEW)
        if cost.run > SLOW:
            slow[variant] = cost
    turns: dict[str, list[Cost]] = {variant: [] for variant in apps if variant not in slow}
    for _ in range(ROUNDS):
        for variant, costs in turns.items():
            costs.append(turn(apps[variant], TASKS))
    medians = {variant: _median(costs) for variant, costs in turns.items()}
    return {variant: slow.get(variant) or medians[variant] for variant in apps}


def turn(app: Celery, tasks: int) -> Cost:
    """The worker has one slot, which a task keeps closed until all are published."""
    name = f"turn-{next(_numbers)}"
    app.tasks["gate"].delay(name)
    _await(f"{name}:closed")
    start = time.perf_counter()
    for number in range(tasks):
        app.tasks["nothing"].delay(f"{name}-{number}")
    published = time.perf_counter()
    app.tasks["end"].delay(name)
    opened = time.perf_counter()
    store().rpush(f"{name}:open", 1)
    _await(f"{name}:ended")
    ended = time.perf_counter()
    return Cost((published - start) / tasks * 1e6, (ended - opened) / tasks * 1e6)


def _await(key: str) -> None:
    if store().blpop([key], timeout=60) is None:
        raise AssertionError(f"waited a minute in vain for {key}")


def _median(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(c.publish for c in costs), statistics.median(c.run for c in costs))
