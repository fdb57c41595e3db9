"""From a release until the next one runs: this lock beside what one would write without it, in one run.

    python -m benchmarks.handover [tasks]
    python -m benchmarks.handover many

Real prefork workers on one server. A hand-over is the time from the end of one run's work, just before its
lock is released, to the start of the next run's work. Half the tasks of each variant are published at once
while the key is free, the other half while it is held, for two seconds. `many` is thousands of waiters on
fifty keys.
"""

from __future__ import annotations

import os
import sys

from benchmarks import handover_idle, handover_in_place, handover_many
from benchmarks.handover_tasks import (
    AN_ANSWER,
    SLOTS,
    VARIANTS,
    WORK,
    WORKERS,
    Figures,
    Variant,
    late,
    measure,
    percentile,
)
from tests.support.servers import Server, available_kinds

BURST = 100


def print_tasks(tasks: int) -> None:
    print(
        f"Tasks pass one key on: {tasks} a variant, each holds it for {WORK * 1000:.0f} ms, "
        f"{WORKERS} workers with {SLOTS} slots each;\n"
        "Lock is redis.lock.Lock\n\n"
        f"{'':26}       hand-over, ms\n"
        f"{'':26}   at once        settled     deliveries  slots that  slot time without\n"
        f"{'':26}   p50     p99    p50     p99      a task   only wait   the lock, a task"
    )
    for variant, figures in measured(tasks).items():
        print(
            f"{variant.name:26}{_times(figures.at_once)} {_times(figures.settled)}"
            f"{figures.deliveries / figures.runs:12.2f}{figures.slots:12}"
            f"{figures.without_lock / figures.runs * 1000:16.0f} ms"
        )
    print(f"{'goal':26}{_goal(10, 100)} {_goal(10, 100)}{'≤ 2.5':>12}{'0':>12}\n")
    print(f"A slot only waits when its task has no answer from the lock after {AN_ANSWER * 1000:.0f} ms.")
    print(
        f"Meanwhile a plain sleep ended late by {percentile(late, 50):.1f} ms (p50) and "
        f"{percentile(late, 99):.1f} ms (p99);\n"
        f"the load average was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n"
    )


def measured(tasks: int) -> dict[Variant, Figures]:
    """There and back again, so that a change in what else the machine does meets them all."""
    figures = {variant: Figures() for variant in VARIANTS}
    for variant in (*VARIANTS, *reversed(VARIANTS)):
        measure(variant, tasks // 4, figures[variant])
    return figures


def print_in_place(url: str, tasks: int) -> None:
    print(
        f"Two processes pass one lock to and fro, {tasks} turns\n\n"
        f"{'':31} hand-over, ms\n"
        f"{'':31}   p50     p99  requests  commands, those in scripts too"
    )
    for name, lock_of in handover_in_place.LOCKS.items():
        passed = handover_in_place.measure(lock_of, url, tasks // 2)
        print(f"{name:31}{_times(passed.handovers)}{passed.requests:10.1f}{passed.commands:10.1f}")
    print(f"{'goal':31}{_goal(10, 100)}\n")


def print_burst() -> None:
    burst = handover_idle.measure(BURST)
    print(f"{BURST} tasks on one key at once: {burst.deliveries:.2f} deliveries a task (goal: ≤ 2.5)\n")
    print(f"CPU of a worker's parent in {handover_idle.WATCHED:.0f} s, idle:")
    for name, figures in (("after these waiters", burst.idle), ("no locked task", burst.plain_idle)):
        print(f"{name:26}{'  '.join(f'{seconds:.2f} s' for seconds in figures)}")


def _times(milliseconds: list[float]) -> str:
    return f"{percentile(milliseconds, 50):6.1f} {percentile(milliseconds, 99):7.1f}"


def _goal(p50: int, p99: int) -> str:
    return f"{f'≤ {p50}':>6} {f'≤ {p99}':>7}"


def main() -> None:
    argument = sys.argv[1] if len(sys.argv) > 1 else "60"
    with Server.start(available_kinds()[0]) as server:
        os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = server.url
        if argument == "many":
            handover_many.measure()
            return
        print_tasks(int(argument))
        print_in_place(server.url, int(argument))
        print_burst()


if __name__ == "__main__":
    main()
