"""A steady stream of tasks for a fleet, and a report of what became of them.

The tasks are those of `load_tasks`. Each run writes to a journal on disk, so a worker that is cut off from
Redis can write too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from celery.exceptions import OperationalError

from tests.support.processes import wait_until

TASKS = "tests.faults.load_tasks"
SHORT_KEYS, LONG_KEYS = 3, 2


class Journal:
    """The lines that the runs have written, oldest first."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "journal"
        self._path.touch()

    def entries(self, event: str) -> list[dict]:
        entries = map(json.loads, self._path.read_text().splitlines())
        return [entry for entry in entries if entry["event"] == event]


@dataclass
class Report:
    """What became of the tasks of one load."""

    published: int
    completed: int
    overlaps: int
    lost: int
    completed_twice: int
    cut_short: int
    longest_gap: float
    longest_pause: float


class Load(threading.Thread):
    """Publishes a task every `every` seconds from its start until `end`.

    Most tasks take `short` seconds, on three keys. One in `one_long_in` takes `long` seconds, on one of two
    other keys, so that the short tasks do not have to wait for it.
    """

    def __init__(
        self,
        app,
        queue: str,
        journal: Journal,
        *,
        every: float = 0.08,
        short: float = 0.15,
        long: float = 3.0,
        one_long_in: int = 20,
        name: str | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.sent: dict[str, float] = {}
        name = name or f"key-{uuid.uuid4().hex[:6]}"
        self.short_keys, self.long_keys = short_keys(name), long_keys(name)
        self._app, self._queue, self._journal = app, queue, journal
        self._every, self._short, self._long, self._one_long_in = every, short, long, one_long_in
        self._over = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self._over.wait(self._every):
                return
            with contextlib.suppress(OperationalError):  # not published, so it cannot be lost either
                self.publish("work", *self._arguments(number))

    def publish(self, task: str, *args: object, queue: str | None = None) -> str:
        sent = self._app.send_task(f"{TASKS}.{task}", args, queue=queue or self._queue)
        self.sent[sent.id] = time.time()
        return sent.id

    def _arguments(self, number: int) -> tuple[str, float]:
        round_, place = divmod(number, self._one_long_in)
        if place == self._one_long_in // 4:
            return self.long_keys[round_ % LONG_KEYS], self._long
        # Two tasks of a key in a row, so that the second finds the lock busy.
        return self.short_keys[number // 2 % SHORT_KEYS], self._short

    def end(self) -> None:
        self._over.set()
        self.join()

    def entries(self, event: str) -> list[dict]:
        """The lines that runs of this load's tasks have written."""
        return [entry for entry in self._journal.entries(event) if entry["id"] in self.sent]

    def starts(self) -> dict[str, list[float]]:
        """The times of the starts, by key."""
        times = defaultdict(list)
        for entry in self.entries("start"):
            times[entry["key"]].append(entry["at"])
        return times

    def await_starts(self, count: int, *, timeout: float = 60.0) -> None:
        """Return when `count` more runs have started on each key."""
        before = {key: len(times) for key, times in self.starts().items()}
        keys = [*self.short_keys, *self.long_keys]

        def every_key_goes_on() -> bool:
            starts = self.starts()
            return all(len(starts[key]) >= before.get(key, 0) + count for key in keys)

        wait_until(every_key_goes_on, timeout=timeout, what=f"{count} more starts on each key", every=0.1)

    def lost(self) -> set[str]:
        """The tasks that have not completed."""
        return set(self.sent) - {entry["id"] for entry in self.entries("end")}

    def report(self, *, within: float = 60.0, settle: float = 0.0) -> Report:
        """Wait for all tasks to complete, then `settle` seconds for surplus runs, and count."""
        until = time.time()
        with contextlib.suppress(AssertionError):  # the report counts what has not completed
            wait_until(lambda: not self.lost(), timeout=within, what="all to complete", every=0.1)
        time.sleep(settle)
        ends = Counter(entry["id"] for entry in self.entries("end"))
        return Report(
            published=len(self.sent),
            completed=len(ends),
            overlaps=len(self.entries("overlap")),
            lost=len(self.lost()),
            completed_twice=sum(times > 1 for times in ends.values()),
            cut_short=len(self.entries("start")) - sum(ends.values()),
            longest_gap=self._longest_gap(until),
            longest_pause=self._longest_pause(),
        )

    def _longest_gap(self, until: float) -> float:
        """The longest time in which no task completed while this load was published."""
        ends = [entry["at"] for entry in self.entries("end") if entry["at"] < until]
        return _longest_step([min(self.sent.values()), *ends, until])

    def _longest_pause(self) -> float:
        """The longest time between two starts of a key with short tasks."""
        starts = self.starts()
        return max(_longest_step(sorted(starts[key])) for key in self.short_keys)


def short_keys(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(SHORT_KEYS)]


def long_keys(name: str) -> list[str]:
    return [f"{name}-long-{number}" for number in range(LONG_KEYS)]


def _longest_step(moments: list[float]) -> float:
    return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)
