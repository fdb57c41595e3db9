"""What events cost: a batch of tasks through a real worker, with and without `-E`, in turns, in one run.

    python -m benchmarks.events [rounds]

Celery's own events of a plain task cost too; what locks add to that is the difference.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.ops.observed import Fleet, started
from tests.support.servers import Server, available_kinds

BATCH = 100
TASKS = ("plain", "quiet", "work")  # no lock; a lock and no events of it; a lock


def microseconds(fleet: Fleet, task: str, queue: str) -> float:
    """One task's share of a batch: from publishing it all to the last result."""
    work = getattr(fleet.proj, task)
    start = time.perf_counter()
    results = [work.apply_async((f"bench-{i}",), queue=queue) for i in range(BATCH)]
    for result in results:
        result.get(timeout=120)
    return (time.perf_counter() - start) / BATCH * 1e6


def compare(url: str, rounds: int) -> dict[tuple[str, bool], list[float]]:
    taken: dict[tuple[str, bool], list[float]] = {(task, events): [] for task in TASKS for events in (0, 1)}
    with ExitStack() as stack:
        fleets = {}
        for events in (False, True):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options = ("-E",) if events else ()
            queue = f"events-{events}"
            fleets[events] = stack.enter_context(started(url, *options, directory=directory, queues=(queue,)))
        for _ in range(rounds + 1):  # the first warms up
            for (task, events), turns in taken.items():
                turns.append(microseconds(fleets[events], task, f"events-{bool(events)}"))
    return {name: turns[1:] for name, turns in taken.items()}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with Server.start(available_kinds()[0]) as server:
        taken = compare(server.url, rounds)
    for task in TASKS:
        without, with_events = taken[task, False], taken[task, True]
        ratio = statistics.median(b / a for a, b in zip(without, with_events, strict=True))
        print(
            f"{task:6} without -E {statistics.median(without):6.0f} µs   with -E "
            f"{statistics.median(with_events):6.0f} µs   ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
