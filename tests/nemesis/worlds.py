"""The worlds that the nemesis plagues: processes with `RLock`, and a Celery fleet, each on lock servers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil
from celery import Celery
from kombu.exceptions import OperationalError

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.lock_server import RedisLockServer
from tests.nemesis import routes
from tests.nemesis.checkers import RECOVERY
from tests.nemesis.history import Event, Recorder, Tail, clock, read
from tests.nemesis.links import Link, Links
from tests.nemesis.lock_servers import LockServers
from tests.nemesis.rlock_process import Plan
from tests.support.daemon import Daemon
from tests.support.fleet import redelivered_after
from tests.support.processes import wait_until
from tests.support.servers import DEFAULT_KIND, Server
from tests.support.workers import Worker

if TYPE_CHECKING:
    from typing_extensions import Self

#: Redis keys that outlive a hold for a bounded time: they hold no lock.
MEMORIES = (":token", ":done", ":unacked")
PROJECT = "tests.nemesis.proj"
QUEUE = "nemesis"
VISIBILITY = 6.0
LONGEST_QUEUE = 20
_TASK_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class World:
    """Processes that take locks, each with a link of its own to the lock servers."""

    name: str
    keys: ClassVar[dict[str, int]]

    def __init__(self, servers: LockServers, seed: int, *, ttl: float = 2.0, mutation: str = "") -> None:
        self.servers, self.seed, self.ttl, self.mutation = servers, seed, ttl, mutation
        self.directory = Path(tempfile.mkdtemp(prefix="rlock-nemesis-"))
        self.recorder = Recorder(self.directory, "nemesis")
        self.processes: list[Daemon] = []
        self.links: dict[str, Link] = {}
        self._running = ExitStack()

    def start(self) -> None:
        links = self._running.enter_context(Links())
        self._prepare()
        for number in range(self._count):
            name = f"{self.name}-{number}"
            self.links[name] = links.link(self.servers.ports, f"{self.seed} {name}")
            process = self._make(number, name, routes.environment(self.links[name].routes))
            self._running.enter_context(process).launch()
            self.processes.append(process)
        for process in self.processes:
            process.await_ready()

    @property
    def _count(self) -> int:
        raise NotImplementedError

    def _prepare(self) -> None:
        """Start what the processes need."""

    def _make(self, number: int, name: str, env: dict[str, str]) -> Daemon:
        raise NotImplementedError

    def link_of(self, process: Daemon) -> Link:
        return self.links[process.name.partition("@")[0]]

    def events(self) -> list[Event]:
        return read(self.directory)

    def kill_all(self, pids: Sequence[int]) -> None:
        """SIGKILL. What is written down is the time before, because a parent may act at once."""
        self.recorder.write("killed", pids=list(pids))
        _signal_all(pids, signal.SIGKILL)

    def suspend(self, pids: Sequence[int]) -> None:
        """SIGSTOP, until `resume`."""
        self.recorder.write("suspended", pids=list(pids))
        _signal_all(pids, signal.SIGSTOP)

    def resume(self, pids: Sequence[int]) -> None:
        _signal_all(pids, signal.SIGCONT)
        self.recorder.write("resumed", pids=list(pids))

    def revive(self) -> None:
        """Start the processes that have died."""
        for process in self.processes:
            if not process.running:
                process.launch()
        for process in self.processes:
            process.await_ready()

    def finish(self) -> None:
        """Let the load end: all that was begun is done, and all processes that can have ended."""
        raise NotImplementedError

    def _ended_badly(self, process: Daemon, why: str) -> None:
        last = process.log.strip().rpartition("\n")[2]
        self.recorder.write("ended badly", name=process.name, why=f"{why}; its log ends: {last}")

    def probe(self) -> None:
        """Take every key once with no fault on the way, and look at what is left in Redis then."""
        lock_server = RedisLockServer(self.servers.client())
        for key in self.keys:
            self._probe(lock_server, key)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._held(), timeout=self.ttl + RECOVERY, what="free locks", every=0.2)
        names = self.servers.names()
        endless = [name for name, left in names.items() if left == -1]
        self.recorder.write("leftovers", names=self._held(), endless=endless)
        self.recorder.write("refused by the server", commands=sorted(self.servers.refused()))

    def _probe(self, lock_server: RedisLockServer, key: str) -> None:
        begin, why, taken = clock(), "", False
        lock = ReentrantLock(key, lock_server=lock_server, ttl=self.ttl, limit=self.keys[key])
        while not taken and clock() < begin + self.ttl + RECOVERY:
            try:
                taken = lock.acquire(timeout=self.ttl + RECOVERY)
            except LockUnavailable as error:
                why = str(error)
                time.sleep(0.1)
        if taken:
            lock.release()
        self.recorder.write("probe", key=key, taken=taken, seconds=clock() - begin, why=why or "it was busy")

    def _held(self) -> list[str]:
        """The Redis keys that hold a lock or wait for one."""
        names = [name for name in self.servers.names() if not name.endswith(":seal")]
        return [name for name in names if not any(memory in name for memory in MEMORIES)]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class ClientProcess(Daemon):
    """A process of `rlock_process`."""

    def __init__(self, plan: Plan, env: dict[str, str]) -> None:
        super().__init__(plan.name, env)
        self._plan, self._starts = plan, itertools.count()

    def command(self) -> list[str]:
        plan = dataclasses.replace(self._plan, seed=f"{self._plan.seed}-{next(self._starts)}")
        words = json.dumps(dataclasses.asdict(plan))
        return [sys.executable, "-m", "tests.nemesis.rlock_process", words]

    def is_ready(self) -> bool:
        return (Path(self._plan.directory) / f"{self.name}-{self.pid}.jsonl").exists()


class RLockWorld(World):
    """Processes whose threads take a few keys by turns, one of them with two places."""

    name = "rlock"
    keys: ClassVar[dict[str, int]] = {"a": 1, "b": 1, "pair": 2}
    long = 0.03  #: the share of holds that outlast the lease
    _count = 3

    def _make(self, number: int, name: str, env: dict[str, str]) -> Daemon:
        plan = Plan(
            name,
            self.servers.url,
            str(self.directory),
            seed=f"{self.seed}-{number}",
            keys=self.keys,
            ttl=self.ttl,
            replicas=self.servers.replicas,
            long=self.long,
            mutation=self.mutation,
        )
        return ClientProcess(plan, env)

    def finish(self) -> None:
        (self.directory / "stop").touch()
        for process in self.processes:
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                self._ended_badly(process, "it does not end")
            else:
                if code:
                    self._ended_badly(process, f"exit code {code}")


class PatientWorld(RLockWorld):
    """The same, and every third hold takes about as long as the lease."""

    name = "rlock-long"
    long = 0.3


class FleetWorld(World):
    """Two prefork workers and one with threads, and a publisher. The broker is not the lock server."""

    name = "fleet"
    keys: ClassVar[dict[str, int]] = {"a": 1, "b": 1, "c": 1, "pair": 2}
    _count = 3
    pools = (("prefork", 2), ("prefork", 2), ("threads", 3))

    def __init__(self, servers: LockServers, seed: int, *, ttl: float = 3.0, mutation: str = "") -> None:
        super().__init__(servers, seed, ttl=ttl, mutation=mutation)
        self.broker = Server(DEFAULT_KIND)
        self._publishing = threading.Event()
        self._app = Celery("publisher", set_as_current=False)
        self._thread = threading.Thread(target=self._publish, name="publisher", daemon=True)
        self.published: dict[str, str] = {}
        self._tail, self._ended = Tail(self.directory), set[str]()

    def start(self) -> None:
        super().start()
        self._publishing.set()
        self._thread.start()

    def _prepare(self) -> None:
        self._running.enter_context(self.broker).started()
        self._app.conf.update(broker_url=self.broker.url, **redelivered_after(VISIBILITY))

    def _make(self, number: int, name: str, env: dict[str, str]) -> Daemon:
        pool, concurrency = self.pools[number]
        conf = {
            "rlock_ttl": self.ttl,
            "rlock_replicas": self.servers.replicas,
            **redelivered_after(VISIBILITY),
        }
        env |= {
            "RLOCK_TEST_BROKER": self.broker.url,
            "RLOCK_TEST_LOCKS": self.servers.url,
            "RLOCK_TEST_CONF": json.dumps(conf),
            "NEMESIS_DIRECTORY": str(self.directory),
            "NEMESIS_MUTATION": self.mutation,
        }
        return Worker(
            f"{PROJECT}:app",
            pool=pool,
            concurrency=concurrency,
            queues=[QUEUE],
            hostname=f"{name}@n",
            env=env,
        )

    def _publish(self) -> None:
        """Publish while the queue is short: a fleet that cannot keep up would have no end."""
        choice = random.Random(f"{self.seed} publisher")
        queue = self.broker.client()
        while self._publishing.is_set():
            time.sleep(choice.uniform(0.05, 0.25))
            if queue.llen(QUEUE) > LONGEST_QUEUE:
                continue
            key = choice.choice(list(self.keys))
            seconds, options = choice.choice((0.0, 0.02, 0.05)), {}
            if choice.random() < 0.04:
                seconds = 1.2 * self.ttl
            elif choice.random() < 0.05:
                seconds, options = 4.0, {"soft_time_limit": 2}
            task = f"{PROJECT}.{'work' if self.keys[key] == 1 else 'work_in_pairs'}"
            with contextlib.suppress(OperationalError):
                sent = self._app.send_task(task, (key, seconds), queue=QUEUE, **options)
                self.recorder.write("published", id=sent.id, key=key)
                self.published[sent.id] = key

    def unfinished(self) -> set[str]:
        """The tasks that have not ended."""
        self._ended |= {event["id"] for event in self._tail.new() if event["what"] in {"end", "failed"}}
        return self.published.keys() - self._ended

    def at_broker(self) -> set[str]:
        """The tasks of which the broker has a message, queued or not acknowledged."""
        with self.broker.client(decode_responses=True) as client:
            texts = [*client.lrange(QUEUE, 0, -1), *client.hvals("unacked")]
        return self.published.keys() & {task for text in texts for task in _TASK_ID.findall(text)}

    def finish(self) -> None:
        """Publish no more, and wait for what is published: each task may wait for a redelivery."""
        self.stop_publishing()
        for process in self.processes:
            if not process.running:
                self._ended_badly(process, "it has ended by itself")
        with contextlib.suppress(AssertionError):  # the checker says which tasks never completed
            wait_until(lambda: not self.unfinished(), timeout=90, what="all tasks to end", every=0.5)
        self.recorder.write("still waiting", tasks=sorted(self.unfinished() & self.at_broker()))
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.at_broker(), timeout=30, what="the acknowledgements", every=0.5)
        for process in self.processes:
            process.stop(timeout=20)

    def stop_publishing(self) -> None:
        self._publishing.clear()
        if self._thread.ident is not None:
            self._thread.join()

    def kill(self, worker: Worker) -> None:
        """SIGKILL to the worker and its children, but not while one of them has just taken a message.

        kombu removes a message from the queue before it knows it as unacknowledged. A worker that dies in
        between loses it, locked or not (docs/semantics.md): that is not what is tried here.
        """
        family = [worker.pid, *worker.children()]
        for _ in range(50):
            os.kill(worker.pid, signal.SIGSTOP)
            if self.unfinished() <= self.at_broker():
                break
            os.kill(worker.pid, signal.SIGCONT)
            time.sleep(0.05)
        self.kill_all(family)
        worker.wait()
        wait_until(lambda: not any(map(psutil.pid_exists, family)), what="the end of the children")

    def __exit__(self, *_: object) -> None:
        self.stop_publishing()
        self._app.close()
        super().__exit__()


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
