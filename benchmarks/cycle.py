"""An uncontended acquire and release: `RLock` and `redis.lock.Lock` with the same client, in turns.

    python -m benchmarks.cycle [--seconds 15] [page …]

Both use one redis-py client with its default settings, as a user makes it. `RLock` also runs with the client
that the library makes itself when the user gives none.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import redis
from celery import Celery

from benchmarks.cpu import cpu
from benchmarks.figures import Spread, options, publish, surroundings, table
from celery_rlock import RLock
from tests.support.servers import Server, available_kinds

CYCLES = 100
THEIRS = "`redis.lock.Lock`"


class Cost(NamedTuple):
    """Microseconds for one cycle."""

    wall: float
    client: float  # CPU time of all threads
    server: float  # CPU time


def main() -> None:
    asked = options(__doc__, seconds=15.0)
    with Server.start(available_kinds()[0]) as server:
        costs = measure(server, asked.seconds)
    rows = [(kind, *_cells(turns, costs[THEIRS])) for kind, turns in costs.items()]
    titles = ("", "wall", "CPU, client", "CPU, server", "wall / Lock", "CPU / Lock")
    rounds = f"{len(costs[THEIRS])} rounds of {CYCLES} cycles for each kind."
    publish(asked.pages, "cycle", table(titles, rows), f"{rounds} {surroundings()}")


def measure(server: Server, seconds: float) -> dict[str, list[Cost]]:
    cycles = kinds(server.url)
    costs: dict[str, list[Cost]] = {kind: [] for kind in cycles}
    for cycle in cycles.values():
        turn(cycle, server)  # warm-up
    end = time.monotonic() + seconds
    order = list(cycles)
    while time.monotonic() < end or not costs[THEIRS]:
        random.shuffle(order)
        for kind in order:
            costs[kind].append(turn(cycles[kind], server))
    return costs


def kinds(url: str) -> Mapping[str, Callable[[], None]]:
    client = redis.Redis.from_url(url)
    Celery("cycle", broker=url).set_default()

    def theirs() -> None:
        with client.lock("cycle-of-redis-py", timeout=30):
            pass

    def same_client() -> None:
        with RLock("cycle", client=client, ttl=30):
            pass

    def own_client() -> None:
        with RLock("cycle", ttl=30):
            pass

    return {THEIRS: theirs, "`RLock`, same client": same_client, "`RLock`, its own client": own_client}


def turn(cycle: Callable[[], None], server: Server) -> Cost:
    processes = (time.process_time(), cpu([server.pid]))
    start = time.perf_counter()
    for _ in range(CYCLES):
        cycle()
    wall = time.perf_counter() - start
    used = (now - then for now, then in zip((time.process_time(), cpu([server.pid])), processes, strict=True))
    return Cost(*(seconds / CYCLES * 1e6 for seconds in (wall, *used)))


def _cells(turns: Sequence[Cost], theirs: Sequence[Cost]) -> list[str]:
    """The figures of each round are compared with the same round of `redis.lock.Lock`."""
    cells = [f"{Spread.of(column).middle:.0f}" for column in zip(*turns, strict=True)]
    for of in (lambda cost: cost.wall, lambda cost: cost.client + cost.server):
        ratio = Spread.of([of(mine) / of(other) for mine, other in zip(turns, theirs, strict=True)])
        cells.append(f"{ratio.middle:.2f} ({ratio.low:.2f} … {ratio.high:.2f})")
    return cells


if __name__ == "__main__":
    main()
