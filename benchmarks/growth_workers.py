"""The parts of benchmarks.growth that need real workers."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count

import redis
from celery import Celery

from benchmarks.cpu import cpu
from celery_rlock import LockedTask, settings
from celery_rlock.core.lock import ReentrantLock
from tests.support.processes import wait_until
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

TURNS = 50  # measured hand-overs
WATCHED = 3.0  # seconds for which the waiting tasks are watched
BATCH, ROUNDS = 100, 7

_numbers = count(1)


def make_app(url: str | None, lock_url: str | None) -> Celery:
    """An app with one task, with the lock and without it. Each run counts itself in the broker's Redis."""
    made = Celery("growth", broker=url, set_as_current=False)
    made.conf.update(
        broker_connection_retry_on_startup=True, task_ignore_result=True, rlock_url=lock_url, rlock_ttl=6
    )

    def count_run(key: str, seconds: float = 0) -> None:  # noqa: ARG001 - only lock_key uses it
        time.sleep(seconds)
        store(url).incr("done")

    made.task(count_run, name="plain", shared=False)
    made.task(count_run, name="locked", shared=False, base=LockedTask, lock_key="{key}")
    made.task(count_run, name="unique", shared=False, base=LockedTask, lock_key="{key}", lock_from="publish")
    return made


@cache
def store(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


app = make_app(os.environ.get("GROWTH_URL"), os.environ.get("GROWTH_LOCK_URL"))


@contextmanager
def started(processes: int, lock_url: str | None = None) -> Iterator[tuple[Celery, Server, Worker]]:
    """A worker whose processes have all run a locked task. The broker keeps the locks too by default."""
    with Server.start(available_kinds()[0]) as server:
        lock_url = lock_url or server.url
        env = {"GROWTH_URL": server.url, "GROWTH_LOCK_URL": lock_url}
        with Worker.start("benchmarks.growth_workers:app", concurrency=processes, env=env) as worker:
            publisher = make_app(server.url, lock_url)
            run_all(publisher, server, "locked", processes, seconds=0.5)
            yield publisher, server, worker


def run_all(publisher: Celery, server: Server, name: str, tasks: int, seconds: float = 0) -> None:
    """Publish tasks with free keys, and return when they have run and are acknowledged."""
    done = runs(server)
    for _ in range(tasks):
        publisher.tasks[name].delay(f"free-{next(_numbers)}", seconds)
    wait_until(lambda: runs(server) >= done + tasks, timeout=120, what="the tasks")
    time.sleep(0.1)


def parked_tasks(waiting: int) -> Iterator[tuple[str, float]]:
    """So many tasks wait for one key in a worker: the CPU time of its parent process."""
    with started(2) as (publisher, server, worker):
        lock_server, done = settings.server(publisher), runs(server)
        lock = ReentrantLock("parked", lock_server=lock_server, ttl=600)
        line = lock_server.redis_keys("parked").waiters
        lock.acquire()
        before = cpu([worker.pid])
        for _ in range(waiting):
            publisher.tasks["locked"].delay("parked")
        client = store(server.url)
        wait_until(lambda: client.zcard(line) >= waiting, timeout=300, what="all tasks to wait", every=0.2)
        parked = cpu([worker.pid])
        yield "park a task, worker's parent", (parked - before) / waiting * 1e6
        time.sleep(WATCHED)
        idle = cpu([worker.pid])
        yield "keep one of n for a second, worker's parent", (idle - parked) / WATCHED / waiting * 1e6
        lock.release()
        few = min(waiting, TURNS)
        wait_until(lambda: runs(server) - done >= few, timeout=120, what="the first of them", every=0.002)
        yield "hand over, worker's parent", (cpu([worker.pid]) - idle) / (runs(server) - done) * 1e6


def pool_processes(processes: int) -> Iterator[tuple[str, float]]:
    """A worker has so many processes: the CPU time that a lock adds to a task."""
    with started(processes) as (publisher, server, worker):
        groups = ([worker.pid], worker.children(), [server.pid])
        added = []
        for _ in range(ROUNDS):
            usual, with_lock = (batch(publisher, server, name, groups) for name in ("plain", "locked"))
            added.append([more - less for more, less in zip(with_lock, usual, strict=True)])
        parts = [statistics.median(part) for part in zip(*added, strict=True)]
    for name, microseconds in zip(("worker's parent", "children", "server"), parts, strict=True):
        yield f"added to a task, {name}", microseconds


def batch(publisher: Celery, server: Server, name: str, groups: Sequence[Sequence[int]]) -> list[float]:
    """CPU microseconds of each group of processes for one of many tasks."""
    before = [cpu(group) for group in groups]
    run_all(publisher, server, name, BATCH)
    return [(cpu(group) - then) / BATCH * 1e6 for group, then in zip(groups, before, strict=True)]


def runs(server: Server) -> int:
    return int(store(server.url).get("done") or 0)
