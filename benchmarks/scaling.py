"""What a fleet costs its lock server, from the figures that benchmarks.traffic has measured.

    python -m benchmarks.scaling --workers 1000 --processes 16 --tasks 5000 --seconds 2

The formulas are in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

#: The rows of the tables in docs/scaling.md, as benchmarks.traffic writes them.
SET = "`SET`"
TASK = "task, key free"
UNIQUE = 'task, `lock_from="publish"`'
WAITER = "task that waits and is woken"
RENEWAL, RENEWAL_OF_MANY = "renewal, a process with one lock", "renewal, one of many locks of a process"
QUESTION = "question of a waiter, one of many"
LISTENING = "process that listens, a second"
POOL_PROCESS, PARENT = "pool process that has run a locked task", "parent process that has waiters"
HELD, RELEASED, WAITING = "held lock, key of 40 characters", "released lock, for a minute", "waiter"

CYCLE = "acquire and release"

FIGURES = Path(__file__).with_name("traffic.json")
TOKEN_MEMORY = 60.0  # seconds for which Redis remembers the token of a released lock
MESSAGES = 2  # a release tells the first waiter and the second
COMFORTABLE = 0.5  # of a core: above, answers take noticeably longer


def _asked(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"help": f"{meaning}; default: {default}"})


@dataclass(frozen=True)
class Fleet:
    """What the calculator is asked about."""

    workers: int = _asked(10, "workers")
    processes: int = _asked(4, "pool processes of each worker")
    tasks: float = _asked(100.0, "locked tasks a second, in the whole fleet")
    seconds: float = _asked(1.0, "seconds for which a run holds its lock")
    contended: float = _asked(0.1, "share of the tasks that find their key busy")
    wait: float = _asked(5.0, "seconds for which such a task waits")
    ttl: float = _asked(30.0, "lock_ttl")
    backoff_max: float = _asked(30.0, "lock_backoff_max")
    primaries: int = _asked(1, "primaries of a Cluster")

    @property
    def held(self) -> float:
        return self.tasks * self.seconds

    @property
    def waiting(self) -> float:
        return self.tasks * self.contended * self.wait

    @property
    def listeners(self) -> int:
        """The parent processes that have a waiter: all of them, or as many as there are waiters."""
        return min(self.workers, math.ceil(self.waiting))

    @property
    def renewals(self) -> float:
        """A second. A run that is shorter than a third of the lease is never renewed.

        A prefork process runs one task at a time, so each renewal is a request of its own.
        """
        return self.tasks * (self.seconds // (self.ttl / 3))

    def operations(self) -> dict[str, float]:
        """How many of each there are in a second."""
        return {
            TASK: self.tasks * (1 - self.contended),
            WAITER: self.tasks * self.contended,
            RENEWAL: self.renewals,
            QUESTION: self.waiting / self.backoff_max,
            LISTENING: self.listeners * self.primaries,
        }


def estimate(fleet: Fleet, figures: dict[str, Any]) -> dict[str, str]:
    traffic, connections, memory = (figures[name] for name in ("traffic", "connections", "memory"))

    def total(what: str) -> float:
        return sum(often * traffic[name][what] for name, often in fleet.operations().items())

    # A busy server finds many requests whenever it looks, and needs less CPU time for each of them.
    cores = total("cpu") / 1e6 * min(1, figures["busy"][CYCLE] / traffic[TASK]["cpu"])
    tokens = fleet.tasks * TOKEN_MEMORY
    kept = fleet.held * memory[HELD] + tokens * memory[RELEASED] + fleet.waiting * memory[WAITING]
    processes = fleet.workers * fleet.processes * connections[POOL_PROCESS]
    # A process connects to each primary whose keys it uses, in the end to all of them.
    connected = processes + fleet.listeners * connections[PARENT]
    messages = fleet.tasks * fleet.contended * MESSAGES
    return {
        "locks held at a time": f"{fleet.held:,.0f}",
        "tasks waiting at a time": f"{fleet.waiting:,.0f}",
        "connections to each primary": f"{connected:,.0f}",
        "requests a second": f"{total('requests'):,.0f}",
        "commands a second, in scripts too": f"{total('commands'):,.0f}",
        "renewals a second": f"{fleet.renewals:,.0f}",
        "pub/sub messages a second": f"{messages:,.0f}",
        "network in, Mbit/s": f"{total('bytes_in') * 8 / 1e6:,.1f}",
        "network out, Mbit/s": f"{total('bytes_out') * 8 / 1e6:,.1f}",
        "memory, MB": f"{kept / 1e6:,.1f}",
        "CPU, cores like the measured one": f"{cores:,.2f}",
        f"primaries at {COMFORTABLE:.0%} of a core each": f"{max(1, math.ceil(cores / COMFORTABLE))}",
    }


#: The fleets that docs/scaling.md shows, by the names of their marks.
EXAMPLES = {
    "many short tasks": Fleet(workers=1000, processes=16, tasks=5000, seconds=2),
    "long tasks": Fleet(workers=1000, processes=16, tasks=267, seconds=60),
}


def arguments() -> Fleet:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    for asked in fields(Fleet):
        option = f"--{asked.name.replace('_', '-')}"
        parser.add_argument(
            option, type=type(asked.default), default=asked.default, help=asked.metadata["help"]
        )
    return Fleet(**vars(parser.parse_args()))


def main() -> None:
    for what, figure in estimate(arguments(), json.loads(FIGURES.read_text())).items():
        print(f"{what:36} {figure:>14}")


if __name__ == "__main__":
    main()
