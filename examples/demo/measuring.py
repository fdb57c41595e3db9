"""Turns recorded events into runs, overlaps, lost tasks, and the time after the kill."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from examples.demo.recording import Event


@dataclass(frozen=True)
class Round:
    """The name of the task that a round publishes, and the round's title."""

    task: str
    title: str
    locked: bool


@dataclass(frozen=True)
class Kill:
    """kill -9 of a worker, and when it happened."""

    worker: str
    at: float


@dataclass(frozen=True)
class Run:
    """One run of a task. A run that has not ended has no `end`."""

    task_id: str
    worker: str
    start: float
    end: float | None
    killed: bool = False


@dataclass(frozen=True)
class Publication:
    """One message of beat; `pid` is the beat process that published it."""

    task_id: str
    at: float
    pid: int


@dataclass(frozen=True)
class Outcome:
    """What was known about a round at the time `known_at`, during the round or after it."""

    round: Round
    publications: Sequence[Publication]
    runs: Sequence[Run]
    kill: Kill | None
    known_at: float

    def end_of(self, run: Run) -> float:
        return self.known_at if run.end is None else run.end

    @property
    def running(self) -> list[Run]:
        return [run for run in self.runs if run.end is None]

    @property
    def lost(self) -> set[str]:
        """The ids of tasks that were published but not completed."""
        return {publication.task_id for publication in self.publications} - self.completed

    @property
    def completed(self) -> set[str]:
        return {run.task_id for run in self.runs if run.end is not None and not run.killed}

    @property
    def overlaps(self) -> list[tuple[float, float]]:
        """For each pair of runs that overlapped, the start and the end of the overlap."""
        pairs = (
            (max(one.start, other.start), min(self.end_of(one), self.end_of(other)))
            for one, other in combinations(self.runs, 2)
        )
        return [(start, end) for start, end in pairs if start < end]

    @property
    def killed(self) -> Run | None:
        return next((run for run in self.runs if run.killed), None)

    @property
    def successor(self) -> Run | None:
        """The first run that started after the kill."""
        if self.kill is None:
            return None
        return next((run for run in self.runs if run.start > self.kill.at), None)

    @property
    def rerun(self) -> Run | None:
        """The killed task's next run."""
        if self.killed is None:
            return None
        again = (run for run in self.runs if run.task_id == self.killed.task_id and not run.killed)
        return next(again, None)

    @property
    def takeover(self) -> tuple[float, float] | None:
        """The time of the kill, and the time when the next run started."""
        return None if self.kill is None or self.successor is None else (self.kill.at, self.successor.start)

    @property
    def lease_left(self) -> tuple[float, float] | None:
        """The same, if the next run had to wait for the lease of a lock."""
        return self.takeover if self.round.locked else None

    @property
    def begin(self) -> float:
        """When the first tick was published."""
        return min((publication.at for publication in self.publications), default=self.known_at)

    @property
    def duration(self) -> float:
        return max(map(self.end_of, self.runs), default=self.known_at) - self.begin


def outcome_of(a_round: Round, events: Sequence[Event], kill: Kill | None) -> Outcome:
    """The outcome that the events show. The kill ends the run of the killed worker."""
    ends = {event["run"]: event["at"] for event in events if event["event"] == "end"}
    runs = (_run(event, ends.get(event["run"]), kill) for event in _of_kind(events, "start"))
    publications = (Publication(e["task_id"], e["at"], e["pid"]) for e in _of_kind(events, "published"))
    in_order = sorted(runs, key=lambda run: run.start)
    return Outcome(a_round, tuple(publications), in_order, kill, known_at=time.time())


def _of_kind(events: Iterable[Event], kind: str) -> Iterable[Event]:
    return (event for event in events if event["event"] == kind)


def _run(start: Event, end: float | None, kill: Kill | None) -> Run:
    on_killed_worker = kill is not None and start["worker"] == kill.worker and start["at"] <= kill.at
    if end is None and kill is not None and on_killed_worker:
        return Run(start["task_id"], start["worker"], start["at"], kill.at, killed=True)
    return Run(start["task_id"], start["worker"], start["at"], end)
