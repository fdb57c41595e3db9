"""A process whose threads take `RLock`s, enter them again and release them, and write down what they believe.

`python -m tests.nemesis.rlock_process '<Plan as JSON>'`. The main thread is interrupted by SIGUSR1, whose
handler raises at any line, as a soft time limit does. It ends when the file `stop` appears in the directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockBusy, LockLost, LockNotHeld, LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.nemesis import mutations, routes
from tests.nemesis.history import Recorder, clock

LOOK_EVERY = 0.01
#: So long after an acquire was given up, its request may still enter the lock for a moment, and leave it.
SETTLED_AFTER = 6.0
#: Events of looks are written so often; a loss at once.
WRITE_EVERY = 0.05


class Interrupted(Exception):
    """The signal has struck."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one process does."""

    name: str
    url: str
    directory: str
    seed: str
    keys: dict[str, int]  #: the keys, with their limits
    threads: int = 3
    ttl: float = 2.0
    replicas: int = 0
    long: float = 0.03  #: the share of holds that outlast the lease
    mutation: str = ""


class Actor:
    """One thread: takes turns until the end."""

    def __init__(self, plan: Plan, number: int, lock_server: RedisLockServer, recorder: Recorder) -> None:
        self._plan, self._lock_server, self._recorder = plan, lock_server, recorder
        self._is_main = number == 0
        self._who = f"{plan.name}/{os.getpid()}/{number}"
        self._choice = random.Random(f"{plan.seed}-{number}")
        self._armed = False
        self._taking: ReentrantLock | None = None
        self._given_up = 0.0  #: when an acquire was last given up

    def run(self) -> None:
        if self._is_main:
            signal.signal(signal.SIGUSR1, self._interrupt)
        stop = Path(self._plan.directory) / "stop"
        while not stop.exists():
            try:
                self._armed = self._is_main
                self._turn()
                self._armed = False
            except Interrupted:  # its handler has disarmed itself
                self._given_up = clock()
                self._write("interrupted")
                self._leave_completely()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise Interrupted

    def _turn(self) -> None:
        try:
            self._take_a_key()
        except LockUnavailable:
            self._given_up = clock()
            self._write("unavailable")
            time.sleep(self._choice.uniform(0.01, 0.05))
        except (LockBusy, LockLost):
            pass

    def _take_a_key(self) -> None:
        """Take one key, hold it, sometimes enter it again, and leave it."""
        choice, plan = self._choice, self._plan
        key = choice.choice(list(plan.keys))
        self._taking = lock = self._lock(key)
        if choice.random() < plan.long:
            seconds = choice.uniform(0.5, 1.5) * plan.ttl
        else:
            seconds = choice.choice((0.0, 0.0, 0.01, 0.02, 0.06))
        if not lock.acquire(timeout=choice.choice((1.0, 3.0))):
            return
        try:
            with contextlib.nullcontext() if self._is_main else self._file(lock):
                self._hold(lock, seconds)
                if lock.held and choice.random() < 0.3:
                    self._enter_again(lock, choice.randrange(1, 3))
                    self._hold(lock, 0.0)
                self._about("leaving", lock)
        finally:
            with contextlib.suppress(LockNotHeld):
                lock.release()

    def _leave_completely(self) -> None:
        """The signal may strike between an acquire and its `try`, or inside a `finally`."""
        while self._taking is not None and self._taking.depth:
            with contextlib.suppress(LockNotHeld):
                self._taking.release()

    def _lock(self, key: str) -> ReentrantLock:
        plan = self._plan
        return ReentrantLock(
            key, lock_server=self._lock_server, ttl=plan.ttl, replicas=plan.replicas, limit=plan.keys[key]
        )

    def _hold(self, lock: ReentrantLock, seconds: float) -> None:
        """Look at the lock for so long, or until it is lost."""
        until, written = clock() + seconds, 0.0
        for _ in itertools.count():
            at, lease = clock(), lock._mine()[1]
            deadline = lease.deadline
            if not lock.held:
                self._about("told", lock)
                return
            if at >= until or at >= written + WRITE_EVERY:
                self._about("held", lock, at=at, deadline=deadline, asked=lease.since)
                written = at
            if at >= until:
                return
            time.sleep(max(0.0, min(LOOK_EVERY, until - at)))

    def _enter_again(self, lock: ReentrantLock, levels: int) -> None:
        """Through other objects for the same key, as other code of the same thread would."""
        if not levels:
            return
        inner, token, before = self._lock(lock.key), lock.token, lock.depth
        try:
            if not inner.acquire(timeout=1.0):
                self._about("refused", lock, why="it was busy")
                return
        except LockLost:
            self._about("told", lock)
            return
        except LockUnavailable:
            self._given_up = clock()
            return
        try:
            if self._is_settled:
                self._about("entered", lock, before=before, depth=inner.depth, was=token)
            self._enter_again(lock, levels - 1)
        finally:
            before = inner.depth
            with contextlib.suppress(LockNotHeld):
                inner.release()
            if not inner.lost and self._is_settled:
                self._about("exited", lock, before=before, depth=inner.depth)

    @property
    def _is_settled(self) -> bool:
        return clock() > self._given_up + SETTLED_AFTER

    @contextlib.contextmanager
    def _file(self, lock: ReentrantLock) -> Iterator[None]:
        """The kernel's word: only one process at a time has the lock on the file of a key."""
        if self._plan.keys[lock.key] > 1:
            yield
            return
        with (Path(self._plan.directory) / f"{lock.key}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._about("conflict", lock)
            yield

    def _about(self, what: str, lock: ReentrantLock, *, at: float | None = None, **fields: object) -> None:
        owner, limit = lock.owner.partition("/")[2], self._plan.keys[lock.key]
        self._write(what, at=at, key=lock.key, owner=owner, token=lock.token, limit=limit, **fields)

    def _write(self, what: str, *, at: float | None = None, **fields: object) -> None:
        self._recorder.write(what, at=at, who=self._who, **fields)


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by default it ends a process
    routes.install()
    mutations.install(plan.mutation)
    recorder = Recorder(plan.directory, plan.name)
    recorder.write("started")
    lock_server = RedisLockServer(connect(plan.url))
    actors = [Actor(plan, number, lock_server, recorder) for number in range(plan.threads)]
    threads = [threading.Thread(target=actor.run) for actor in actors[1:]]
    for thread in threads:
        thread.start()
    actors[0].run()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a handler would not outlast Python
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
