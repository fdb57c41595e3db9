"""The CPU time that a lock adds to a task: in the publisher, the worker's parent, its child and the server.

    python -m benchmarks.peers_cost [--seconds 80] [page …]

Each kind of lock takes part in each round with one short turn, in a new order each time. What a lock adds is
the difference from the plain tasks of the same round, so a slow moment of the machine changes it little.
Plain tasks take part twice, on two workers: how far these two differ is the error of all figures. Only the
quieter half of the rounds counts, in which all kinds together needed the least CPU time.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from celery import Celery

from benchmarks.cpu import cpu
from benchmarks.figures import Spread, image, options, publish, surroundings, table
from benchmarks.peers_app import PLAIN, PLAIN_AGAIN, VARIANTS, build, fleet, store
from benchmarks.plot import draw_bars
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

TASKS = 12
#: Its worker waits for a second before each task, so a turn would take half a minute.
TOO_SLOW = {"celery-heimdall"}
KINDS = [kind for kind in VARIANTS if kind not in TOO_SLOW]

_numbers = count(1)


class Cost(NamedTuple):
    """Microseconds of CPU time for one task."""

    publisher: float
    parent: float
    child: float
    server: float

    @property
    def total(self) -> float:
        return sum(self)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class Subject(NamedTuple):
    """A kind of lock that is measured: its app to publish with, its worker with one slot, and the server."""

    app: Celery
    worker: Worker
    child: int
    server: Server

    def cpu(self) -> tuple[float, ...]:
        return tuple(cpu([pid]) for pid in (os.getpid(), self.worker.pid, self.child, self.server.pid))


def main() -> None:
    asked = options(__doc__, seconds=80.0)
    with Server.start(available_kinds()[0]) as server:
        os.environ["PEERS_URL"] = server.url
        apps = {kind: build(kind) for kind in KINDS}
        with fleet(apps, concurrency=1) as workers:
            subjects = {
                kind: Subject(apps[kind], worker, worker.children()[0], server)
                for kind, worker in workers.items()
            }
            costs = measure(subjects, asked.seconds)
    report(costs, asked.pages)


def quieter_half(costs: Mapping[str, list[Cost]]) -> dict[str, list[Cost]]:
    """The rounds that other programs disturbed least. All kinds together decide which these are."""
    dear = [sum(cost.total for cost in turns) for turns in zip(*costs.values(), strict=True)]
    limit = statistics.median(dear)
    return {
        kind: [turn for turn, total in zip(turns, dear, strict=True) if total <= limit]
        for kind, turns in costs.items()
    }


def report(costs: Mapping[str, list[Cost]], pages: Sequence[str]) -> None:
    costs = quieter_half(costs)
    plain = [_mean(pair) for pair in zip(costs[PLAIN], costs[PLAIN_AGAIN], strict=True)]
    base = _medians(plain)
    rows = [(PLAIN, *(f"{part:.0f}" for part in (*base, base.total)), "", "")]
    bars, notes = {}, []
    for kind in [kind for kind in costs if kind != PLAIN]:
        usual = costs[PLAIN] if kind == PLAIN_AGAIN else plain
        added = [turn - other for turn, other in zip(costs[kind], usual, strict=True)]
        parts, total = _medians(added), Spread.of([cost.total for cost in added])
        cells = [f"{part:+.0f}" for part in (*parts, total.middle)]
        rows.append((kind, *cells, f"{total.error(len(added)):.0f}", f"{total.low:+.0f} … {total.high:+.0f}"))
        if kind != PLAIN_AGAIN:
            bars[kind] = parts._asdict()
            notes.append(f"{total.middle:+.0f} µs")
    titles = ("", *Cost._fields, "all", "±", "half of the rounds")
    packages = dict.fromkeys(VARIANTS[kind][1] for kind in costs)
    rounds = f"{len(plain)} rounds of {TASKS} tasks for each kind."
    measured = surroundings(*(name for name in packages if name not in (None, "redis", "celery-rlock")))
    publish(pages, "cost", table(titles, rows), f"{rounds} {measured}")
    headline = "CPU time that a lock adds to a task"
    draw_bars(image(pages, "cost.svg"), headline, "microseconds a task, key free", bars, notes)


def _mean(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(statistics.mean, zip(*costs, strict=True)))


def _medians(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(statistics.median, zip(*costs, strict=True)))


def measure(subjects: Mapping[str, Subject], seconds: float) -> dict[str, list[Cost]]:
    """The costs of each kind in each round. No two tasks use the same key."""
    kinds = list(subjects)
    turns: dict[str, list[Cost]] = {kind: [] for kind in kinds}
    for subject in subjects.values():
        turn(subject, TASKS)  # warm-up
    end = time.monotonic() + seconds
    while time.monotonic() < end or not turns[kinds[0]]:
        random.shuffle(kinds)
        for kind in kinds:
            turns[kind].append(turn(subjects[kind], TASKS))
    return turns


def turn(subject: Subject, tasks: int) -> Cost:
    """A task keeps the worker's slot busy until all tasks are published; then they run one after another."""
    name, app = f"turn-{next(_numbers)}", subject.app
    keys = [f"{name}-{number}" for number in range(tasks)]
    nothing = app.tasks["nothing"]
    app.tasks["gate"].delay(name)
    _await(f"{name}:closed")
    before = subject.cpu()
    for key in keys:
        nothing.delay(key)
    published = cpu([os.getpid()])
    app.tasks["end"].delay(name)
    store().rpush(f"{name}:open", 1)
    _await(f"{name}:ended")
    after = (published, *subject.cpu()[1:])
    return Cost(*((then - now) / tasks * 1e6 for now, then in zip(before, after, strict=True)))


def _await(key: str) -> None:
    if store().blpop([key], timeout=60) is None:
        raise AssertionError(f"{key} did not come within a minute")


if __name__ == "__main__":
    main()
