"""How a run ended: when its process died, when its lock was free, and when the next holder ran."""

from __future__ import annotations

import os
import select
import statistics
import threading
import time
from dataclasses import dataclass

from celery import Celery

from tests.support.table import Table
from tests.support.workers import Worker

POLL = 0.003

#: The table in docs/faults.md.
ENDINGS = Table(
    "how it ended",
    "faults",
    "CELERY_RLOCK_FAULTS_TABLE",
    (
        "how it ended",
        "pool",
        "broker",
        "lock free after, ms",
        "next holder running after, ms",
        "completed, times",
    ),
)


@dataclass
class Victim:
    """A task that runs and that the test is about to end. `client` publishes to its broker."""

    client: Celery
    worker: Worker
    id: str
    pid: int


@dataclass
class Ending:
    """Seconds since the run ended: since Python left it, or since its process died."""

    free_after: float
    running_after: float
    completed: int


@dataclass
class EndingRow:
    """A row of the table: one way to end a run, seen once or several times."""

    how: str
    pool: str
    broker: str
    endings: list[Ending]

    def cells(self) -> tuple[str, ...]:
        free = _figure([ending.free_after for ending in self.endings])
        running = _figure([ending.running_after for ending in self.endings])
        return (self.how, self.pool, self.broker, free, running, str(self.endings[0].completed))


def _figure(seconds: list[float]) -> str:
    values = [value * 1000 for value in seconds]
    if len(values) == 1:
        return f"{values[0]:.0f}"
    return f"p50 {statistics.median(values):.0f}, worst {max(values):.0f}"


class Watch:
    """Runs `wait` in a thread and keeps the time at which `wait` returned True."""

    def __init__(self, wait) -> None:
        self.at: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(wait,), daemon=True)
        self._thread.start()

    def _run(self, wait) -> None:
        if wait(self._over):
            self.at = time.time()

    def join(self, timeout: float = 1.0) -> float | None:
        """The time of the event; None when it does not happen within `timeout`."""
        self._thread.join(timeout)
        self._over.set()
        self._thread.join()
        return self.at


def death_of(pid: int) -> Watch:
    """The moment when the process dies. The kernel tells it by a pidfd, whichever process reaps it."""
    descriptor = os.pidfd_open(pid)

    def wait(over: threading.Event) -> bool:
        try:
            while not over.is_set():
                if select.select([descriptor], [], [], 0.1)[0]:
                    return True
            return False
        finally:
            os.close(descriptor)

    return Watch(wait)


def end_of_ownership(client, lock: str, task_id: str) -> Watch:
    """The moment when the lock's hash is gone or belongs to another task."""
    mark = task_id.encode()

    def wait(over: threading.Event) -> bool:
        while not over.is_set():
            if not any(field.endswith(mark) for field in client.hkeys(lock)):
                return True
            time.sleep(POLL)
        return False

    return Watch(wait)
