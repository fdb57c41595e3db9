"""What events cost: batches of tasks through real workers, with and without `-E`, in turns, in one run.

    python -m benchmarks.events [rounds]

Measured is the processor time that the worker and its child take for a task, the same on a busy machine.
Celery's own events cost too; what those of locks add is the difference between the ratios.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.ops.observed import Fleet, started
from tests.support.servers import Server, available_kinds

BATCH = 150
#: A task without a lock, one with a lock that sends no events, and one that does.
TASKS = {"plain": "no lock", "quiet": "lock, send_events=False", "work": "lock"}


def processor_time(fleet: Fleet) -> float:
    family = [psutil.Process(pid) for pid in (fleet.worker.pid, *fleet.worker.children())]
    return sum(times.user + times.system for times in (process.cpu_times() for process in family))


def microseconds(fleet: Fleet, task: str, queue: str) -> float:
    """One task's share of a batch."""
    work = getattr(fleet.proj, task)
    start = processor_time(fleet)
    results = [work.apply_async((f"bench-{i}",), queue=queue) for i in range(BATCH)]
    for result in results:
        result.get(timeout=120)
    return (processor_time(fleet) - start) / BATCH * 1e6


def compare(url: str, rounds: int) -> dict[tuple[str, bool], list[float]]:
    taken: dict[tuple[str, bool], list[float]] = {(task, on): [] for task in TASKS for on in (False, True)}
    with ExitStack() as stack:
        fleets = {}
        for on in (False, True):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options = ("-E",) if on else ()
            fleets[on] = stack.enter_context(started(url, *options, directory=directory, queues=(f"{on}",)))
        for _ in range(rounds + 1):  # the first warms up
            for (task, on), turns in taken.items():
                turns.append(microseconds(fleets[on], task, f"{on}"))
    return {name: turns[1:] for name, turns in taken.items()}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with Server.start(available_kinds()[0]) as server:
        taken = compare(server.url, rounds)
    for task, name in TASKS.items():
        without, with_events = (statistics.median(taken[task, on]) for on in (False, True))
        ratio = with_events / without
        print(f"{name:24} without -E {without:5.0f} µs   with -E {with_events:5.0f} µs   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
