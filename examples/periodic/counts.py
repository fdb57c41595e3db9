"""The counts of one periodic task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from redis import Redis

from examples.embedded.processes import Process
from examples.embedded.story import wait_until


@dataclass(frozen=True)
class Counts:
    """For one task: the ticks of each beat, the published messages, the skipped ones, and the runs."""

    ticks: Sequence[int]
    published: int
    skipped: int
    runs: Sequence[float]

    @property
    def closest(self) -> float:
        """The shortest time between the starts of two runs, in seconds."""
        return min((later - earlier for earlier, later in pairwise(self.runs)), default=0)

    @property
    def ended(self) -> bool:
        """Whether every message was run or skipped."""
        return len(self.runs) + self.skipped >= self.published


def counts(client: Redis, beats: Sequence[Process], task: str) -> Counts:
    """The counts so far."""
    return Counts(
        ticks=[ticks(beat, task) for beat in beats],
        published=client.llen(f"published:{task}"),
        skipped=client.llen(f"skip:{task}"),
        runs=sorted(map(float, client.lrange(f"run:{task}", 0, -1))),
    )


def final_counts(client: Redis, beats: Sequence[Process], task: str) -> Counts:
    """The counts after every message was run or skipped."""
    wait_until(lambda: counts(client, beats, task).ended, f"all runs of {task}")
    return counts(client, beats, task)


def ticks(beat: Process, task: str) -> int:
    """How often the beat was due to send the task, whether or not it was published."""
    return sum(line.endswith(f"({task})") for line in beat.log.splitlines() if "Sending due task" in line)
