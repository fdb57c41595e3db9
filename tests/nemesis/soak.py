"""Load with faults for a long time: memory, file descriptors, threads, Redis keys and connections stay flat.

`python -m tests.nemesis.soak --minutes 30` writes the plot where --plot says, by default to nemesis-results.
A fleet and processes with `RLock` share one lock server. Only faults that every process survives befall them,
but for pool processes, which their worker replaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import redis

from benchmarks.plot import Panel, draw_panels
from tests.nemesis.checkers import History, Verdict, check, excused, violations
from tests.nemesis.history import clock
from tests.nemesis.lock_servers import PREFIX, Standalone
from tests.nemesis.nemesis import PICTURES, Nemesis
from tests.nemesis.worlds import MEMORIES, FleetWorld, RLockWorld, World

EVERY = 5.0
#: One world after the other is plagued for so long.
TURN = 30.0

Series = dict[str, list[tuple[float, float]]]

#: What may grow between the second quarter and the last: a share, and an amount in the unit of the series.
ALLOWED = {
    "memory, MB": (0.10, 8.0),
    "file descriptors": (0.10, 4.0),
    "threads": (0.10, 4.0),
    "connections": (0.20, 8.0),
    "keys of locks and waiters": (0.20, 8.0),
    "memory of the lock server, MB": (0.20, 1.0),
}
#: Shown and not judged: they remember for up to an hour which messages have ended (docs/redis.md).
NOT_JUDGED = "keys that remember messages"


class Sampler(threading.Thread):
    """Measures the processes and the lock server every few seconds."""

    def __init__(self, worlds: Sequence[World], server: Standalone) -> None:
        super().__init__(name="sampler", daemon=True)
        self.series: dict[str, Series] = {}
        self._worlds, self._server, self._over = worlds, server, threading.Event()
        self._begin = clock()

    def run(self) -> None:
        while not self._over.wait(EVERY):
            with contextlib.suppress(psutil.Error, redis.RedisError):  # gone or down at this moment
                self._sample()

    def end(self) -> None:
        self._over.set()
        self.join()

    def _sample(self) -> None:
        at = (clock() - self._begin) / 60
        rows = dict(self._processes())
        rows |= {("lock server", name): value for name, value in _of_server(self._server).items()}
        for (who, name), value in rows.items():
            self.series.setdefault(name, {}).setdefault(who, []).append((at, value))

    def _processes(self) -> Iterator[tuple[tuple[str, str], float]]:
        for world in self._worlds:
            for process in world.processes:
                found = psutil.Process(process.pid)
                yield (process.name, "memory, MB"), found.memory_info().rss / 1e6
                yield (process.name, "file descriptors"), found.num_fds()
                yield (process.name, "threads"), found.num_threads()


def _of_server(server: Standalone) -> dict[str, float]:
    with server.server.client(decode_responses=True) as client:
        names = list(client.scan_iter(f"{PREFIX}*", count=1000))
        memories = [name for name in names if any(memory in name for memory in MEMORIES)]
        return {
            "connections": client.info("clients")["connected_clients"],
            "memory of the lock server, MB": client.info("memory")["used_memory"] / 1e6,
            "keys of locks and waiters": len(names) - len(memories),
            NOT_JUDGED: len(memories),
        }


def growing(series: Mapping[str, Series]) -> list[str]:
    """The series that are larger in their last quarter than in their second, beyond what is allowed."""
    found = []
    for name, (share, amount) in ALLOWED.items():
        for who, points in series.get(name, {}).items():
            values = [value for _, value in points]
            quarter = len(values) // 4
            if not quarter:
                continue
            before = statistics.median(values[quarter : 2 * quarter])
            after = statistics.median(values[-quarter:])
            if after > before * (1 + share) + amount:
                found.append(f"{name} of {who}: {before:.1f}, later {after:.1f}")
    return found


def soak(seed: int, minutes: float) -> tuple[dict[str, Series], list[Verdict], str]:
    """Run the load and the faults. Returns what was measured, the verdicts, and a summary."""
    end = clock() + 60 * minutes
    with Standalone() as server, FleetWorld(server, seed) as fleet, RLockWorld(server, seed) as processes:
        worlds = (fleet, processes)
        sampler = Sampler(worlds, server)
        sampler.start()
        nemeses = [Nemesis(world, seed, mild=True) for world in worlds]
        while clock() < end:
            for nemesis in nemeses:
                nemesis.run(min(end, clock() + TURN))
        sampler.end()
        for world in worlds:
            world.finish()
        fleet.probe()
        # Both worlds use the same keys, so they are judged together.
        events = sorted(fleet.events() + processes.events(), key=lambda event: event["at"])
    history = History.of(events, fleet.ttl)
    faults = sum(sum(nemesis.done.values()) for nemesis in nemeses)
    tasks = len(history.named("published"))
    summary = f"{minutes:g} minutes, {len(history.owned)} ownerships, {tasks} tasks, {faults} faults"
    return sampler.series, check(history), summary


def plot(series: Mapping[str, Series], headline: str, path: Path) -> None:
    """One panel for each thing that was measured; the processes of a world are one line, their mean."""
    panels = [
        Panel(name, _means(series[name]), "minutes", "", log_x=False)
        for name in (*ALLOWED, NOT_JUDGED)
        if name in series
    ]
    path.parent.mkdir(exist_ok=True)
    draw_panels(path, headline, panels)


def _means(lines: Series) -> Series:
    groups: dict[str, list[list[tuple[float, float]]]] = {}
    for who, points in lines.items():
        groups.setdefault(who.partition("-")[0], []).append(points)
    return {
        group: [
            (row[0][0], statistics.mean(value for _, value in row)) for row in zip(*all_points, strict=False)
        ]
        for group, all_points in groups.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=PICTURES / "soak.svg")
    chosen = parser.parse_args()
    series, verdicts, summary = soak(chosen.seed, chosen.minutes)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "soak.json").write_text(json.dumps(series))
    plot(series, f"Soak, seed {chosen.seed}: {summary}", chosen.plot)
    print(summary)
    for why, count in excused(verdicts).items():
        print(f"  allowed by the docs, {count}: {why}")
    if " 0 ownerships" in summary or " 0 tasks" in summary:
        raise RuntimeError("the load did nothing, so nothing was tried")
    wrong = [f"GROWS {text}" for text in growing(series)]
    wrong += [f"VIOLATION {violation}" for violation in violations(verdicts)]
    print(*(wrong or ["flat, and no violation"]), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
