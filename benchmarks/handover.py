"""Contended tasks: hand-over times, makespan and deliveries, beside what users write with redis.lock.Lock.

    python -m benchmarks.handover [--rounds 2] [--largest 100] [page …]

It uses real prefork workers and one server. A hand-over is the time from the end of one run's work, just
before its lock is released, to the start of the next run's work. Tasks are published while the key is free
("at once"), or while the benchmark holds the key until all of them have found it busy ("settled").
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence

from benchmarks import handover_in_place
from benchmarks.figures import image, options, percentile, publish, surroundings, table
from benchmarks.handover_tasks import SLOTS, WORK, WORKERS, Fleet, Turn, Variant, fleets, late
from benchmarks.plot import Panel, draw_panels
from tests.support.servers import Server, available_kinds

SIZES = (3, 10, 30, 100)
TYPICAL = 30  # tasks for one key, in the table

Turns = Mapping[Variant, Sequence[Turn]]


def main() -> None:
    asked = options(__doc__, rounds=2, largest=100)
    with Server.start(available_kinds()[0]) as server:
        os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = server.url
        with fleets() as ready:
            turns = measure(ready, asked.rounds, asked.largest)
        in_place = {
            name: handover_in_place.measure(lock_of, server.url, 10 * asked.rounds)
            for name, lock_of in handover_in_place.LOCKS.items()
        }
    report_tasks(turns, asked.pages)
    report_in_place(in_place, asked.pages)


def measure(ready: Mapping[Variant, Fleet], rounds: int, largest: int) -> Turns:
    """The variants take turns, so that other load affects all of them. The slow ones take part only once."""
    turns: dict[Variant, list[Turn]] = {variant: [] for variant in ready}
    for number in range(rounds):
        for variant, fleet in ready.items():
            if number and variant.is_slow:
                continue
            most = min(variant.largest, largest)
            turns[variant] += [fleet.turn(size) for size in SIZES if size <= most]
            turns[variant].append(fleet.turn(min(most, TYPICAL), settle=True))
    return turns


def report_tasks(turns: Turns, pages: Sequence[str]) -> None:
    titles = (
        "",
        "hand-over p50",
        "p99",
        "settled p50",
        "p99",
        f"makespan of {TYPICAL} tasks / ideal",
        "deliveries a task",
        "slots that only wait",
        "slot time without the lock, a task",
    )
    rows = [(variant.name, *_cells(taken)) for variant, taken in turns.items()]
    noise = (
        f"Each task works for {WORK * 1000:.0f} ms. {WORKERS} workers have {SLOTS} slots each. Times are "
        f"milliseconds. A plain sleep ended late by {percentile(late, 50):.1f} ms (p50) and "
        f"{percentile(late, 99):.1f} ms (p99). {surroundings()}"
    )
    publish(pages, "contention", table(titles, rows), noise)
    draw_panels(image(pages, "handover.svg"), "From a release to the next run", [_distribution(turns)])
    draw_panels(image(pages, "makespan.svg"), "The time of N tasks for one key", [_makespans(turns)])


def _cells(turns: Sequence[Turn]) -> list[str]:
    at_once, settled = _gaps(turns, settled=False), _gaps(turns, settled=True)
    times = [f"{percentile(gaps, percent):.1f}" for gaps in (at_once, settled) for percent in (50, 99)]
    typical = [turn for turn in turns if turn.tasks == TYPICAL and not turn.settled]
    stretch = f"{statistics.median(turn.stretch for turn in typical):.2f}" if typical else "-"
    tasks = sum(turn.tasks for turn in turns)
    return [
        *times,
        stretch,
        f"{sum(turn.deliveries for turn in turns) / tasks:.2f}",
        str(max(turn.slots for turn in turns)),
        f"{sum(turn.without_lock for turn in turns) / tasks * 1000:.0f}",
    ]


def _gaps(turns: Sequence[Turn], *, settled: bool) -> list[float]:
    return [gap for turn in turns if turn.settled == settled for gap in turn.handovers]


def _distribution(turns: Turns) -> Panel:
    series = {}
    for variant, taken in turns.items():
        gaps = sorted(gap for turn in taken for gap in turn.handovers)
        series[variant.name] = [(gap, number / len(gaps) * 100) for number, gap in enumerate(gaps, 1)]
    return Panel("", series, "milliseconds", "percent of the hand-overs that are as fast or faster")


def _makespans(turns: Turns) -> Panel:
    series = {}
    for variant, taken in turns.items():
        sizes = sorted({turn.tasks for turn in taken if not turn.settled})
        series[variant.name] = [
            (size, statistics.median(t.stretch for t in taken if t.tasks == size and not t.settled))
            for size in sizes
        ]
    return Panel("", series, "tasks for one key", "multiple of the time that the tasks work", log_y=True)


def report_in_place(in_place: Mapping[str, handover_in_place.Passed], pages: Sequence[str]) -> None:
    titles = ("", "hand-over p50", "p99", "requests", "commands, in scripts too")
    rows = [
        (
            name,
            f"{percentile(passed.handovers, 50):.1f}",
            f"{percentile(passed.handovers, 99):.1f}",
            f"{passed.requests:.1f}",
            f"{passed.commands:.1f}",
        )
        for name, passed in in_place.items()
    ]
    publish(pages, "in place", table(titles, rows), surroundings())


if __name__ == "__main__":
    main()
