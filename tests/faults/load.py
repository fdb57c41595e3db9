"""A publisher that keeps a fleet busy, and what the fleet's journal says of it afterwards."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import wait_until

EVERY = 0.08  # seconds, a new task
SHORT = 0.15  # seconds that most of them take
LONG_EACH = 20  # tasks; long ones have keys of their own, or the others would only wait for them
SHORT_KEYS, LONG_KEYS = 3, 2
SETTLED_AFTER = 1.5  # seconds, for what would run a second time


class Journal:
    """What the runs have told, oldest first."""

    def __init__(self, files: Path) -> None:
        self._path = files / "journal"
        self._path.touch()

    def entries(self, event: str) -> list[dict]:
        return [
            entry for entry in map(json.loads, self._path.read_text().splitlines()) if entry["event"] == event
        ]


@dataclass
class Report:
    """What became of the tasks of one load."""

    event: str
    broker: str
    published: int
    completed: int
    overlaps: int
    lost: int
    ran_twice: int
    cut_short: int
    gap: float


class Load(threading.Thread):
    """Publishes tasks from its start until `end`, a short one after the other and now and then a long one."""

    def __init__(self, app, queue: str, journal: Journal, *, long: float = 3.0) -> None:
        super().__init__(daemon=True)
        self.sent: dict[str, float] = {}
        self._app, self._queue, self._journal, self._long = app, queue, journal, long
        self._name = f"key-{uuid.uuid4().hex[:6]}"
        self._over = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self._over.wait(EVERY):
                return
            self.publish("work", *self._next(number))

    def publish(self, task: str, *args: object, queue: str | None = None) -> str:
        sent = self._app.send_task(f"tests.fleet.proj.{task}", args, queue=queue or self._queue)
        self.sent[sent.id] = time.time()
        return sent.id

    def _next(self, number: int) -> tuple[str, float]:
        round_, place = divmod(number, LONG_EACH)
        if place == LONG_EACH // 4:
            return f"{self._name}-long-{round_ % LONG_KEYS}", self._long
        # Two of a key in a row: the second has to wait.
        return f"{self._name}-{number // 2 % SHORT_KEYS}", SHORT

    def end(self) -> None:
        self._over.set()
        self.join()

    def entries(self, event: str) -> list[dict]:
        """What the runs of this load's tasks have told."""
        return [entry for entry in self._journal.entries(event) if entry["id"] in self.sent]

    def lost(self) -> set[str]:
        """Tasks that have not completed."""
        return set(self.sent) - {entry["id"] for entry in self.entries("end")}

    def report(self, event: str, broker: str, *, within: float = 60.0) -> Report:
        """Wait for the last task, and count."""
        until = time.time()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.lost(), timeout=within, what="all to complete", every=0.2)
        time.sleep(SETTLED_AFTER)
        ends = Counter(entry["id"] for entry in self.entries("end"))
        started = len(self.entries("start"))
        return Report(
            event=event,
            broker=broker,
            published=len(self.sent),
            completed=len(ends),
            overlaps=len(self.entries("overlap")),
            lost=len(self.lost()),
            ran_twice=sum(times > 1 for times in ends.values()),
            cut_short=started - sum(ends.values()),
            gap=self._longest_gap(until),
        )

    def _longest_gap(self, until: float) -> float:
        """The longest time within which no task completed while this load was published."""
        ends = [entry["at"] for entry in self.entries("end") if entry["at"] < until]
        moments = [min(self.sent.values()), *ends, until]
        return max(after - before for before, after in itertools.pairwise(moments))
