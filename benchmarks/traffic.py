"""What a task, a waiter and a renewal cost the lock server: requests, commands, bytes, memory, connections.

    python -m benchmarks.traffic [--tasks 300] [page …]

The locks are in a server of their own, so its counters show the lock's traffic alone. The figures also go to
benchmarks/traffic.json, which `python -m benchmarks.scaling` computes with.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import psutil
import redis
from celery import Celery

from benchmarks.cpu import cpu
from benchmarks.figures import options, publish, surroundings, table
from benchmarks.growth_workers import run_all, runs, started
from benchmarks.scaling import (
    CYCLE,
    EXAMPLES,
    FIGURES,
    HELD,
    LISTENING,
    PARENT,
    POOL_PROCESS,
    QUESTION,
    RELEASED,
    RENEWAL,
    RENEWAL_OF_MANY,
    SET,
    TASK,
    UNIQUE,
    WAITER,
    WAITING,
    estimate,
)
from celery_rlock import settings
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Place, Taken
from tests.support.processes import wait_until
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

PROCESSES = 4
QUIET = 10.0  # seconds
CLIENTS, BURSTS = 50, 12  # of the busy server
KEY = "account:0123456789abcdef-0123456789abcde"  # 40 characters


class Traffic(NamedTuple):
    """What one operation costs the lock server."""

    requests: float  # how often the server read from a connection
    commands: float  # those inside scripts too
    bytes_in: float
    bytes_out: float
    cpu: float  # microseconds


class Meter:
    """Reads the counters of a server to which nothing else is connected when the meter is made."""

    def __init__(self, server: Server) -> None:
        self.server = server
        before = cpu([server.pid])
        time.sleep(1)
        self._idle = cpu([server.pid]) - before  # in a second

    def measure(self, count: float, do: Callable[[], object]) -> Traffic:
        """The traffic of one of `count` operations that `do` makes."""
        with self.server.client() as client:
            self._counters(client)
            before = self._counters(client)
            own = [now - then for now, then in zip(self._counters(client), before, strict=True)]
            before, start = self._counters(client), time.monotonic()
            used = cpu([self.server.pid]) - self._idle * start
            do()
            used = cpu([self.server.pid]) - self._idle * time.monotonic() - used
            after = self._counters(client)
        traffic = [now - then - less for now, then, less in zip(after, before, own, strict=True)]
        return Traffic(*(figure / count for figure in traffic), used / count * 1e6)

    @staticmethod
    def _counters(client: redis.Redis) -> list[float]:
        names = ("reads_processed", "commands_processed", "net_input_bytes", "net_output_bytes")
        stats = client.info("stats")
        return [stats[f"total_{name}"] for name in names]


def main() -> None:
    asked = options(__doc__, tasks=300)
    kind = available_kinds()[0]
    with Server.start(kind) as server:
        meter = Meter(server)
        traffic = {SET: _set(meter, asked.tasks), **_verbs(meter, asked.tasks)}
    with Server.start(kind) as server:
        meter = Meter(server)
        with started(PROCESSES, server.url) as (publisher, broker, worker):
            traffic |= _tasks(publisher, broker, meter, asked.tasks)
            connections = _connections(publisher, meter, worker)
    # Too little to be measured beside the server's own work: one small command now and then.
    listening = traffic[LISTENING]
    traffic[LISTENING] = listening._replace(cpu=listening.requests * traffic[SET].cpu)
    with Server.start(kind) as server:
        memory = _memory(server)
        busy = _busy(server)
    write(traffic, busy, connections, memory, asked.pages)


def write(
    traffic: dict[str, Traffic],
    busy: dict[str, float],
    connections: dict[str, float],
    memory: dict[str, float],
    pages: list[str],
) -> None:
    rows = [
        (name, *(f"{figure:.1f}" for figure in figures[:2]), *(f"{figure:.0f}" for figure in figures[2:]))
        for name, figures in traffic.items()
    ]
    titles = ("", "requests", "commands, in scripts too", "bytes in", "bytes out", "server CPU, µs")
    publish(pages, "traffic", table(titles, rows), surroundings())
    rows = [(name, f"{cpu:.1f}", f"{round(1e6 / cpu, -2):,.0f}") for name, cpu in busy.items()]
    publish(pages, "capacity", table(("", "server CPU, µs", "a second, on one core"), rows))
    publish(pages, "connections", table(("", "connections"), _rows(connections)))
    publish(pages, "memory", table(("", "bytes"), _rows(memory)))
    figures = {
        "traffic": {name: figures._asdict() for name, figures in traffic.items()},
        "busy": busy,
        "connections": connections,
        "memory": memory,
    }
    for name, fleet in EXAMPLES.items():
        publish(pages, name, table(("", ""), estimate(fleet, figures).items()))
    if pages:
        FIGURES.write_text(json.dumps(figures, indent=2) + "\n")


def _rows(figures: dict[str, float]) -> list[tuple[str, str]]:
    return [(name, f"{figure:g}") for name, figure in figures.items()]


def _set(meter: Meter, times: int) -> Traffic:
    client = redis.Redis.from_url(meter.server.url)
    client.set(KEY, KEY)

    def write_often() -> None:
        for _ in range(times):
            client.set(KEY, KEY, ex=30)

    return meter.measure(times, write_often)


def _verbs(meter: Meter, times: int) -> dict[str, Traffic]:
    """What a process sends for its locks and waiters, also for many in one round trip."""
    lock_server = RedisLockServer(connect(meter.server.url))
    renewals, places = [], []
    for number in range(times):
        owner = Owner("worker@host", f"{number:08x}", f"00000000-0000-4000-8000-{number:012x}")
        redis_keys = lock_server.redis_keys(f"account:{number}")
        taken = lock_server.acquire(redis_keys, owner, 1, 60, "proj.charge")
        if not isinstance(taken, Taken):
            raise TypeError(f"the lock is not free: {taken}")
        renewals.append(Renewal(redis_keys, owner, taken.token, 60))
        places.append(Place(redis_keys, f"01234567:{owner.field}", 0, 90))
    lock_server.renew(renewals)
    lock_server.wait(places)

    def renew_each() -> None:
        for renewal in renewals:
            lock_server.renew([renewal])

    return {
        RENEWAL: meter.measure(times, renew_each),
        RENEWAL_OF_MANY: meter.measure(times, lambda: lock_server.renew(renewals)),
        QUESTION: meter.measure(times, lambda: lock_server.wait(places)),
    }


def _tasks(publisher: Celery, broker: Server, meter: Meter, tasks: int) -> dict[str, Traffic]:
    run_all(publisher, broker, "unique", PROCESSES)  # connects the publisher
    return {
        TASK: meter.measure(tasks, lambda: run_all(publisher, broker, "locked", tasks)),
        UNIQUE: meter.measure(tasks, lambda: run_all(publisher, broker, "unique", tasks)),
        WAITER: meter.measure(tasks, lambda: _contended(publisher, broker, meter.server, tasks)),
        LISTENING: _listening(publisher, broker, meter),
    }


def _contended(publisher: Celery, broker: Server, server: Server, tasks: int) -> None:
    """All tasks find the key busy, and then run one after another."""
    done = runs(broker)
    lock = _held(publisher, server, tasks)
    lock.release()
    wait_until(lambda: runs(broker) >= done + tasks, timeout=120, what="the waiters")


def _held(publisher: Celery, server: Server, waiters: int) -> ReentrantLock:
    """A held lock with waiters that are parked in the worker."""
    lock = ReentrantLock("busy", lock_server=settings.server(publisher), ttl=60)
    lock.acquire()
    for _ in range(waiters):
        publisher.tasks["locked"].delay("busy")
    with server.client() as client:
        line = settings.server(publisher).redis_keys("busy").waiters
        wait_until(lambda: client.zcard(line) >= waiters, timeout=120, what="the tasks to wait", every=0.1)
    return lock


def _listening(publisher: Celery, broker: Server, meter: Meter) -> Traffic:
    done = runs(broker)
    lock = _held(publisher, meter.server, 1)
    time.sleep(2)  # until the worker has asked everything
    traffic = meter.measure(QUIET, lambda: time.sleep(QUIET))
    lock.release()
    wait_until(lambda: runs(broker) > done, what="the waiter")
    return traffic


def _connections(publisher: Celery, meter: Meter, worker: Worker) -> dict[str, float]:
    """Connections to the lock server of a worker whose processes have all run a locked task."""
    port = meter.server.port
    children = worker.children()
    idle = [_connected(pid, port) for pid in children]
    for number in range(PROCESSES):
        publisher.tasks["locked"].delay(f"renewed-{number}", 5)
    time.sleep(3.5)  # rlock_ttl is 6, so all of them are renewed by now
    renewing = [_connected(pid, port) for pid in children]
    lock = _held(publisher, meter.server, 1)
    waiting = _connected(worker.pid, port)
    lock.release()
    return {
        POOL_PROCESS: statistics.mean(idle),
        "the same, and it has renewed a lock": statistics.mean(renewing),
        PARENT: waiting,
    }


def _connected(pid: int, port: int) -> int:
    found = psutil.Process(pid).net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr.port == port for one in found)


def _memory(server: Server) -> dict[str, float]:
    lock_server = RedisLockServer(connect(server.url))
    lock = ReentrantLock(KEY, lock_server=lock_server, ttl=60)
    keys = lock_server.redis_keys(KEY)
    waiters = 1000

    def used() -> int:
        with server.client() as client:
            return sum(client.memory_usage(name, samples=0) or 0 for name in client.keys(f"{keys.lock}*"))

    lock.acquire()
    held = used()
    for number in range(waiters):
        owner = Owner("worker@host", f"{number:08x}", f"00000000-0000-4000-8000-{number:012x}")
        place = Place(keys, f"01234567:{owner.field}", 0, 90)
        lock_server.wait([place])
    with_waiters = used()
    with server.client() as client:
        client.delete(keys.waiters)
    lock.release()
    return {
        HELD: held,
        RELEASED: used(),
        WAITING: round((with_waiters - held) / waiters),
    }


def _busy(server: Server) -> dict[str, float]:
    """Microseconds of the server's CPU time for one operation when many clients ask at the same time."""
    lock_server, client = RedisLockServer(connect(server.url)), redis.Redis.from_url(server.url)
    locks = [ReentrantLock(f"busy-{number}", lock_server=lock_server) for number in range(CLIENTS)]
    setting = _at_once(server, lambda _: (lambda: client.set(KEY, KEY, ex=30),))
    cycle = _at_once(server, lambda number: (locks[number].acquire, locks[number].release))
    return {SET: setting, CYCLE: cycle}


def _at_once(server: Server, steps_of: Callable[[int], Sequence[Callable[[], object]]]) -> float:
    """Each client takes its steps. For each step the server stands still until all clients have asked."""
    barrier = threading.Barrier(CLIENTS + 1)

    def ask(number: int) -> None:
        for _ in range(BURSTS):
            for step in steps_of(number):
                barrier.wait()
                step()

    used = 0.0
    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(ask, number) for number in range(CLIENTS)]
        for burst in range(BURSTS * len(steps_of(0))):
            server.pause()
            barrier.wait()
            time.sleep(0.1)
            before = cpu([server.pid])
            server.resume()
            wait_until(
                lambda: barrier.n_waiting == CLIENTS or all(map(Future.done, asking)), what="the answers"
            )
            used += (cpu([server.pid]) - before) * (burst >= len(steps_of(0)))  # the first burst connects
    for client in asking:
        client.result()
    return used / CLIENTS / (BURSTS - 1) * 1e6


if __name__ == "__main__":
    main()
