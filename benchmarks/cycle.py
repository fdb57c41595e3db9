"""An uncontended acquire and release: `RLock` beside `redis.lock.Lock`, in turns, in one run.

    python -m benchmarks.cycle [rounds]

Each has the client that a user would give it, on the same server; the ratio is what counts.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import redis

from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts
from tests.support.servers import Server, available_kinds

CYCLES = 400


def microseconds(cycle: Callable[[], None]) -> float:
    """A cycle's mean over one turn."""
    start = time.perf_counter()
    for _ in range(CYCLES):
        cycle()
    return (time.perf_counter() - start) / CYCLES * 1e6


def compare(url: str, rounds: int) -> dict[str, list[float]]:
    scripts = Scripts(connect(url))
    client = redis.Redis.from_url(url)

    def ours() -> None:
        with RLock("bench", scripts=scripts, ttl=30):
            pass

    def theirs() -> None:
        with client.lock("bench-redis-py", timeout=30):
            pass

    taken: dict[str, list[float]] = {"RLock": [], "redis.lock.Lock": []}
    for _ in range(rounds + 1):  # the first warms up
        taken["RLock"].append(microseconds(ours))
        taken["redis.lock.Lock"].append(microseconds(theirs))
    return {name: turns[1:] for name, turns in taken.items()}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for kind in available_kinds():
        with Server.start(kind) as server:
            taken = compare(server.url, rounds)
        ratios = [a / b for a, b in zip(taken["RLock"], taken["redis.lock.Lock"], strict=True)]
        for name, turns in taken.items():
            print(f"{kind:7} {name:16} median {statistics.median(turns):6.0f} µs   best {min(turns):6.0f} µs")
        print(
            f"{kind:7} RLock / redis.lock.Lock: median {statistics.median(ratios):.2f} over {rounds} rounds"
        )


if __name__ == "__main__":
    main()
