"""Two processes take one lock in turns; each waits for it with a blocking acquire().

A process that has released the lock asks for it again as soon as the other one has it, so exactly one process
waits at every release. The time for which the lock is held varies by more than the longest polling interval.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from benchmarks.handover_tasks import handovers
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer

SHORTEST, LONGEST = 0.05, 0.15
PATIENCE = 60


def _rlock(url: str) -> Any:
    return ReentrantLock("handover", lock_server=RedisLockServer(connect(url)))


def _lock(url: str, sleep: float) -> Any:
    return redis.Redis.from_url(url).lock("handover-redis-py", timeout=30, sleep=sleep)


LOCKS: dict[str, Callable[[str], Any]] = {
    "RLock.acquire()": _rlock,
    "Lock, sleep=0.1 (its default)": partial(_lock, sleep=0.1),
    "Lock, sleep=0.01": partial(_lock, sleep=0.01),
}


@dataclass
class Passed:
    handovers: list[float]  # in milliseconds
    commands: float  # for each hand-over, including those inside scripts
    requests: float  # for each hand-over: how often a client sent something to the server


def measure(lock_of: Callable[[str], Any], url: str, turns: int) -> Passed:
    """Measure the hand-overs while each process takes the lock `turns` times."""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(3)]
    (first, to_first), (second, to_second), (one, other) = pipes
    players = [
        spawn.Process(target=play, args=(lock_of, url, turns, *ends), daemon=True)
        for ends in ((first, one), (second, other))
    ]
    drivers = (to_first, to_second)
    try:
        for player in players:
            player.start()
        _receive(*drivers)  # both have warmed up
        before = _counts(url)
        to_first.send(True)  # this one takes the lock first
        to_second.send(False)
        spans = sorted(span for spans in _receive(*drivers) for span in spans)
    finally:
        for player in players:
            player.kill()
            player.join()
    gaps = handovers([start for start, _ in spans[1:]], [end for _, end in spans[:-1]])
    commands, requests = (now - then for now, then in zip(_counts(url), before, strict=True))
    return Passed(gaps, commands / len(gaps), requests / len(gaps))


def play(lock_of: Callable[[str], Any], url: str, turns: int, driver: Any, other: Any) -> None:
    """One of the two processes."""
    lock = lock_of(url)
    lock.acquire()
    lock.release()
    driver.send(None)
    is_first = driver.recv()
    times = random.Random(1)  # the same for every lock
    spans = []
    for turn in range(turns):
        if turn or not is_first:
            other.recv()  # the other process has the lock now
        lock.acquire()
        start = time.time()
        other.send(None)
        time.sleep(times.uniform(SHORTEST, LONGEST))
        spans.append((start, time.time()))
        lock.release()
    driver.send(spans)
    driver.poll(PATIENCE)  # closing the connection now would change the server's counts


def _receive(*drivers: Any) -> Sequence[Any]:
    for driver in drivers:
        if not driver.poll(PATIENCE):
            raise AssertionError("a process that takes the lock in turns does not answer")
    return [driver.recv() for driver in drivers]


def _counts(url: str) -> tuple[int, int]:
    with redis.Redis.from_url(url) as client:
        stats = client.info("stats")
    return stats["total_commands_processed"], stats["total_reads_processed"]
