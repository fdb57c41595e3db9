"""The cost of events: batches of tasks on real workers with and without `-E`, in turns, in one run.

    python -m benchmarks.events [rounds]

It measures the processor time of the worker and its child for each task, which a busy machine changes little.
Celery's own events cost time too. Compare the ratios: the difference is what the lock's events add.
"""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import ExitStack

import psutil
from celery import Celery

from celery_rlock import LockedTask
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

BATCH = 150
URL = os.environ.get("EVENTS_URL")

app = Celery("events", broker=URL, backend=URL, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True


@app.task(name="plain", shared=False)
def plain(name: str) -> None: ...


@app.task(base=LockedTask, name="quiet", shared=False, lock_key="{name}", send_events=False)
def quiet(name: str) -> None: ...


@app.task(base=LockedTask, name="locked", shared=False, lock_key="{name}")
def locked(name: str) -> None: ...


TASKS = {"no lock": plain, "lock, send_events=False": quiet, "lock": locked}
QUEUES = {False: "without-events", True: "with-events"}


def processor_time(worker: Worker) -> float:
    family = [psutil.Process(pid) for pid in (worker.pid, *worker.children())]
    return sum(times.user + times.system for times in (process.cpu_times() for process in family))


def microseconds(worker: Worker, task, queue: str) -> float:
    """The processor time of one task, from a batch of them."""
    start = processor_time(worker)
    results = [task.apply_async((f"bench-{number}",), queue=queue) for number in range(BATCH)]
    for result in results:
        result.get(timeout=120)
    return (processor_time(worker) - start) / BATCH * 1e6


def compare(url: str, rounds: int) -> dict[tuple[str, bool], list[float]]:
    app.conf.update(broker_url=url, result_backend=url)
    taken: dict[tuple[str, bool], list[float]] = {(name, on): [] for name in TASKS for on in QUEUES}
    with ExitStack() as stack:
        workers = {
            on: stack.enter_context(
                Worker.start(
                    "benchmarks.events:app",
                    queues=(queue,),
                    env={"EVENTS_URL": url},
                    args=("-E",) if on else (),
                )
            )
            for on, queue in QUEUES.items()
        }
        for _ in range(rounds + 1):  # the first round warms up
            for (name, on), turns in taken.items():
                turns.append(microseconds(workers[on], TASKS[name], QUEUES[on]))
    return {name: turns[1:] for name, turns in taken.items()}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with Server.start(available_kinds()[0]) as server:
        taken = compare(server.url, rounds)
    for name in TASKS:
        without, with_events = (statistics.median(taken[name, on]) for on in (False, True))
        ratio = with_events / without
        print(f"{name:24} without -E {without:5.0f} µs   with -E {with_events:5.0f} µs   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
