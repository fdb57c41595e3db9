"""How the cost of one operation grows with the number of locks, waiters, keys, processes and Cluster nodes.

    python -m benchmarks.growth [--largest 100000] [--only held] [page …]

Without --only it measures everything, which takes about five minutes. With a page, the figures are also kept
in benchmarks/growth.json, from which the page and its plot are made.

All figures are CPU time for one operation, so a flat line is the best that there is. The last column of each
table is the power of n with which the cost grew over the last three sizes: 0 is flat, 1 is proportional.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import redis

from benchmarks.cpu import cpu
from benchmarks.figures import image, options, publish, surroundings, table
from benchmarks.growth_workers import parked_tasks, pool_processes
from benchmarks.plot import Panel, draw_panels
from celery_rlock.core.execution import Execution, running
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Place, Release, Taken
from celery_rlock.server.wakeups import WakeCallbacks
from tests.support.cluster import Cluster
from tests.support.processes import wait_until
from tests.support.servers import Server, available_kinds

STORED = Path(__file__).with_name("growth.json")
CYCLES = 300
RENEWED_FOR = 4.0  # seconds


class Subject(NamedTuple):
    """Something that there can be more or less of. `measure` yields named costs for a number of it."""

    title: str
    x: str
    sizes: Sequence[int]
    measure: Callable[[int], Iterator[tuple[str, float]]]


#: For each name, the sizes and the microseconds.
Costs = dict[str, list[tuple[int, float]]]


def main() -> None:
    asked = options(__doc__, largest=100_000, only="")
    stored = json.loads(STORED.read_text()) if asked.pages and STORED.exists() else {}
    for name, subject in SUBJECTS.items():
        if asked.only in ("", name):
            costs = measure(subject, asked.largest)
            stored[name] = {"costs": costs, "surroundings": surroundings()}
            print(f"{subject.title}\n{as_table(subject.x, costs)}\n", flush=True)
            if asked.pages:  # so that an interrupted run can go on with --only
                STORED.write_text(json.dumps(stored) + "\n")
    report(stored, asked.pages)


def report(stored: Mapping[str, Mapping[str, Any]], pages: Sequence[str]) -> None:
    """Subjects that were measured at different times each say when and under which load."""
    text, panels = [], []
    for name, subject in SUBJECTS.items():
        if name in stored:
            costs = stored[name]["costs"]
            text += [f"**{subject.title}**", as_table(subject.x, costs), stored[name]["surroundings"]]
            panels.append(Panel(subject.title, costs, subject.x, "microseconds", log_y=True))
    publish(pages, "growth", *text)
    draw_panels(image(pages, "growth.svg"), "CPU time for one operation", panels)


def measure(subject: Subject, largest: int) -> Costs:
    costs: Costs = {}
    for size in subject.sizes:
        if size <= largest:
            for name, microseconds in subject.measure(size):
                costs.setdefault(name, []).append((size, max(1.0, round(microseconds, 1))))  # less is noise
    return costs


def as_table(x: str, costs: Costs) -> str:
    sizes = sorted({size for series in costs.values() for size, _ in series})
    rows = []
    for name, series in costs.items():
        known = dict(series)
        cells = [f"{known[size]:,.0f}" if size in known else "-" for size in sizes]
        rows.append((name, *cells, _power(series)))
    return table((f"µs; {x}:", *(f"{size:,}" for size in sizes), "power of n"), rows)


def _power(series: Sequence[tuple[int, float]]) -> str:
    """The slope of the last three points on logarithmic axes."""
    if len(series) < 2:
        return "-"
    sizes, costs = zip(*((math.log(size), math.log(cost)) for size, cost in series[-3:]), strict=True)
    return f"{statistics.linear_regression(sizes, costs).slope:+.2f}"


def held_locks(held: int) -> Iterator[tuple[str, float]]:
    """A process holds so many locks, each of an execution of its own, as a pool of greenlets does."""
    with Server.start(available_kinds()[0]) as server, server.client() as client:
        lock_server = RedisLockServer(connect(server.url))
        ttl = max(0.3, held * 0.0006)  # the more locks, the longer does it take to renew all of them
        executions = [Execution(Owner("growth", f"{number:08x}", f"task-{number}")) for number in range(held)]
        locks = []
        for number, execution in enumerate(executions):
            with running(execution):
                lock = ReentrantLock(f"held-{number}", lock_server=lock_server, ttl=ttl)
                lock.acquire()
                locks.append(lock)
        before = time.process_time(), cpu([server.pid]), _scripts(client)
        time.sleep(RENEWED_FOR)
        after = time.process_time(), cpu([server.pid]), _scripts(client)
        ours, theirs, renewals = (then - now for now, then in zip(before, after, strict=True))
        yield "renew one of n, client", ours / renewals * 1e6
        yield "renew one of n, server", theirs / renewals * 1e6
        other = ReentrantLock("other", lock_server=lock_server)
        yield "take and release another, client", _cpu_of_this_thread(lambda: _cycle(other))
        for execution, lock in zip(executions, locks, strict=True):
            with running(execution):
                lock.release()


def locks_of_one_execution(held: int) -> Iterator[tuple[str, float]]:
    """One execution, such as a task with many keys, holds so many locks."""
    with Server.start(available_kinds()[0]) as server:
        lock_server = RedisLockServer(connect(server.url))
        with running(Execution(Owner("growth", "one", "task"))):
            locks = [ReentrantLock(f"held-{number}", lock_server=lock_server) for number in range(held)]
            for lock in locks:
                lock.acquire()
            other = ReentrantLock("other", lock_server=lock_server)
            yield "take and release another, client", _cpu_of_this_thread(lambda: _cycle(other))
            for lock in locks:
                lock.release()


def waiters_of_a_key(waiting: int) -> Iterator[tuple[str, float]]:
    """So many waiters are in the line of one key."""
    with Server.start(available_kinds()[0]) as server:
        lock_server = RedisLockServer(connect(server.url))
        line = _Line(lock_server, [server], waiting)
        yield "hand over and join again, server", _cpu_of([server], line.turn)
        place = line.place(line.owners[-1])
        yield "ask from the line, server", _cpu_of([server], lambda: lock_server.wait([place]))
    yield from parked_tasks(waiting)


def used_keys(keys: int) -> Iterator[tuple[str, float]]:
    """A process has used so many keys within the minute for which Redis remembers a key's token."""
    with Server.start(available_kinds()[0]) as server:
        lock_server = RedisLockServer(connect(server.url))
        locks = (ReentrantLock(f"used-{number}", lock_server=lock_server) for number in range(keys + CYCLES))
        for _ in range(keys):
            _cycle(next(locks))
        before = cpu([server.pid])
        yield "take and release, client", _cpu_of_this_thread(lambda: _cycle(next(locks)))
        yield "take and release, server", (cpu([server.pid]) - before) / CYCLES * 1e6


def cluster_nodes(nodes: int) -> Iterator[tuple[str, float]]:
    """The locks are spread over so many primaries."""
    with Cluster.start(available_kinds()[0], primaries=nodes, replicas=0) as cluster:
        lock_server = RedisLockServer(connect(cluster.url))
        locks = [ReentrantLock(f"spread-{number}", lock_server=lock_server) for number in range(CYCLES)]
        for lock in locks:
            _cycle(lock)  # connects to every node
        again = iter(locks)
        yield "take and release, client", _cpu_of_this_thread(lambda: _cycle(next(again)))
        again = iter(locks)
        yield "take and release, servers", _cpu_of(cluster.nodes, lambda: _cycle(next(again)))
        line = _Line(lock_server, cluster.nodes, 2)
        yield "hand over and join again, servers", _cpu_of(cluster.nodes, line.turn)
        yield "hand over and join again, client", _cpu_of_this_process(line.turn)


class _Line:
    """A held key, and waiters in its line. This process listens for their turns, as a worker does."""

    def __init__(self, lock_server: RedisLockServer, servers: Sequence[Server], waiting: int) -> None:
        self._server, self._redis_keys = lock_server, lock_server.redis_keys("line")
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._callbacks = WakeCallbacks(lambda: self._turns.put(None), *[lambda: None] * 2)
        self.owners = deque(Owner("growth", f"{n:08x}", f"task-{n}") for n in range(waiting + 1))
        self._acquire(self.owners[0])
        for owner in list(self.owners)[1:]:
            self._join(owner)
        wait_until(lambda: all(map(_has_listener, servers)), what="a subscription at each server")

    def turn(self) -> None:
        """The holder releases, the first waiter acquires, and the last holder joins the line again."""
        last = self.owners[0]
        self._server.release(self._redis_keys, last, Release())
        self._turns.get(timeout=10)
        self.owners.rotate(-1)
        if not isinstance(self._acquire(self.owners[0]), Taken):
            raise TypeError("the first waiter did not get the lock")
        self._join(last)

    def place(self, owner: Owner) -> Place:
        return self._server.wakeups.place(self._redis_keys, owner, 0, 600)

    def _join(self, owner: Owner) -> None:
        place = self.place(owner)
        self._server.wakeups.add(place, self._callbacks)
        self._acquire(owner, place)

    def _acquire(self, owner: Owner, place: Place | None = None) -> object:
        return self._server.acquire(self._redis_keys, owner, 1, 600, "growth", place=place)


def _has_listener(server: Server) -> bool:
    with server.client() as client:
        return bool(client.pubsub_channels("rlock:wake:*"))


def _cycle(lock: ReentrantLock) -> None:
    with lock:
        pass


def _scripts(client: redis.Redis) -> int:
    return client.info("commandstats")["cmdstat_evalsha"]["calls"]


def _cpu_of_this_thread(operation: Callable[[], object]) -> float:
    return _mean(time.thread_time, operation)


def _cpu_of_this_process(operation: Callable[[], object]) -> float:
    return _mean(time.process_time, operation)


def _cpu_of(servers: Iterable[Server], operation: Callable[[], object]) -> float:
    """Without what the servers use while they have nothing to do: a node of a Cluster talks to the others."""
    pids = [server.pid for server in servers]
    before = cpu(pids)
    time.sleep(1)
    idle = cpu(pids) - before
    return _mean(lambda: cpu(pids) - idle * time.monotonic(), operation)


def _mean(clock: Callable[[], float], operation: Callable[[], object]) -> float:
    """Microseconds on this clock for one operation."""
    before = clock()
    for _ in range(CYCLES):
        operation()
    return (clock() - before) / CYCLES * 1e6


SUBJECTS = {
    "held": Subject("Locks held by a process", "locks", (1, 10, 100, 1000, 10_000), held_locks),
    "execution": Subject("Locks held by one task", "locks", (1, 10, 100, 1000, 3000), locks_of_one_execution),
    "waiters": Subject("Waiters of one key", "waiters", (1, 10, 100, 1000, 10_000), waiters_of_a_key),
    "keys": Subject("Keys in use", "keys", (1, 10, 100, 1000, 10_000, 100_000), used_keys),
    "processes": Subject("Processes of a worker", "processes", (1, 2, 4, 8, 16, 32), pool_processes),
    "nodes": Subject("Primaries of a Cluster", "primaries", (1, 3, 6, 12), cluster_nodes),
}

if __name__ == "__main__":
    main()
