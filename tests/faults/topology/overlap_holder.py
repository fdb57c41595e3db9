"""A process whose threads take locks, and write down apart from Redis when they believed that they held them.

`overlap_checker` starts several of these processes with a `Plan` as JSON, and compares what they wrote.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from redis.sentinel import SentinelManagedConnection

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockLost, LockNotHeld, LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy, Gone, Release, ReleaseReply, Taken

#: How often a holder looks at its lock.
LOOK_EVERY = 0.005


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one process does."""

    url: str
    directory: str
    seed: int
    seconds: float
    keys: int = 3
    threads: int = 3
    ttl: float = 2.0
    replicas: int = 0


class Record:
    """One file of this process, a line of JSON for each event."""

    def __init__(self, directory: str) -> None:
        self._file = (Path(directory) / f"holder-{os.getpid()}.jsonl").open("a", encoding="utf-8")
        self._mutex = threading.Lock()

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"what": what, **fields})
        with self._mutex:
            self._file.write(line + "\n")
            self._file.flush()


class RecordingLockServer(RedisLockServer):
    """Writes down which server confirmed an acquire or a renewal, and when."""

    def __init__(self, plan: Plan, record: Record) -> None:
        super().__init__(connect(plan.url))
        self._record = record

    def acquire(self, redis_keys: RedisKeys, owner: Owner, *args: Any, **options: Any) -> Taken | Busy | Gone:
        sent = monotonic()
        reply = super().acquire(redis_keys, owner, *args, **options)
        if isinstance(reply, Taken):
            self._confirmed("acquire", redis_keys, owner, sent)
        return reply

    def renew(self, renewals: Iterable[Renewal]) -> list[bool | Exception]:
        renewals = list(renewals)
        sent = monotonic()
        answers = super().renew(renewals)
        for renewal, answer in zip(renewals, answers, strict=True):
            if answer is True:
                self._confirmed("renew", renewal.redis_keys, renewal.owner, sent)
        return answers

    def release(self, redis_keys: RedisKeys, owner: Owner, release: Release) -> ReleaseReply:
        sent, reply = monotonic(), "failed"
        try:
            answer = super().release(redis_keys, owner, release)
            reply = answer.name
        finally:
            self._confirmed("release", redis_keys, owner, sent, reply=reply)
        return answer

    def _confirmed(self, what: str, redis_keys: RedisKeys, owner: Owner, sent: float, **more: Any) -> None:
        port = getattr(_answered, "port", 0)
        self._record.write(
            what, key=redis_keys.key, owner=owner.field, sent=sent, got=monotonic(), port=port, **more
        )


_answered = threading.local()


def note_ports() -> None:
    """From now on each thread knows the port of the server that answered it last."""
    read_response = SentinelManagedConnection.read_response

    def noting(connection: SentinelManagedConnection, *args: Any, **options: Any) -> Any:
        _answered.port = int(connection.port)
        return read_response(connection, *args, **options)

    SentinelManagedConnection.read_response = noting


def hold_and_release(lock: ReentrantLock, seconds: float, record: Record) -> None:
    """Hold the lock for so long, or until it is lost, and write down the time in which it was believed in.

    Both times are taken before a look that said yes, so that a slow machine only makes the time shorter.
    """
    owner, token, start, end = lock.owner, lock.token, 0.0, 0.0
    until = monotonic() + seconds
    while True:
        now = monotonic()
        if not lock.held:
            break
        start, end = start or now, now
        if now >= until:
            break
        sleep(max(0.0, min(LOOK_EVERY, until - now)))
    if start:
        record.write("belief", key=lock.key, owner=owner.partition("/")[2], token=token, start=start, end=end)
    with suppress(LockNotHeld):
        lock.release()


def take_turns(plan: Plan, number: int, lock_server: RedisLockServer, record: Record) -> None:
    """Take, hold and release locks until the time is over."""
    choice = random.Random(f"{plan.seed}-{number}")
    end = monotonic() + plan.seconds
    while monotonic() < end:
        lock = ReentrantLock(
            f"key-{choice.randrange(plan.keys)}",
            lock_server=lock_server,
            ttl=plan.ttl,
            replicas=plan.replicas,
        )
        # Most are short; some outlive several renewals.
        seconds = choice.uniform(0.5, 1.5) * plan.ttl if choice.random() < 0.03 else choice.uniform(0, 0.05)
        try:
            if lock.acquire(timeout=0.5):
                hold_and_release(lock, seconds, record)
        except LockUnavailable as error:
            record.write("unavailable", key=lock.key, at=monotonic(), why=str(error)[:200])
            sleep(choice.uniform(0.01, 0.05))
        except LockLost as error:
            record.write("lost", key=lock.key, at=monotonic(), why=str(error)[:200])


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    note_ports()
    record = Record(plan.directory)
    lock_server = RecordingLockServer(plan, record)
    threads = [
        threading.Thread(target=take_turns, args=(plan, number, lock_server, record))
        for number in range(plan.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
