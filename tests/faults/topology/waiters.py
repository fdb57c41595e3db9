"""Waiters for a lock, in threads and processes, and what a server knows of a lock."""

from __future__ import annotations

import contextlib
import sys
import threading
import time

import redis

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.daemon import Daemon
from tests.support.processes import wait_until

#: Enough for a failover on a busy machine.
SOON = 40.0
#: A waiter that is not woken asks every two seconds.
WOKEN_WITHIN = 1.0
PAUSE = 0.05


def through_outages(do):
    """Call `do` until the server answers."""
    while True:
        try:
            return do()
        except LockUnavailable:
            time.sleep(PAUSE)


class Waiter(threading.Thread):
    """Acquires the lock in its own thread, keeps the time and the token, and releases the lock."""

    def __init__(self, lock):
        super().__init__(daemon=True)
        self._lock = lock
        self.at = self.token = None
        self.start()

    def run(self):
        through_outages(self._lock.acquire)
        self.at, self.token = time.time(), self._lock.token
        self._lock.release()


class WaitingProcess(Daemon):
    """A process that acquires and releases the lock. It counts as ready before it has the lock."""

    def __init__(self, url, key):
        super().__init__("waiting process")
        self._args = [url, key]

    def command(self):
        return [sys.executable, "-m", __name__, *self._args]

    def is_ready(self):
        return "begins" in self.log


def has_lock(server, name):
    """Whether this server stores the lock, as a primary or as a replica."""
    with server.client() as client:
        return f"rlock:{{{name}}}".encode() in client.keys("rlock:*")


def await_replication(replica, name):
    wait_until(lambda: has_lock(replica, name), timeout=SOON, what="the replica to have the lock")


def lease_left(primary, name):
    """In seconds; negative when there is no such lock."""
    with primary.client() as client:
        return client.pttl(f"rlock:{{{name}}}") / 1000


def await_renewal(primary, name):
    before = lease_left(primary, name)
    assert before > 0
    wait_until(lambda: lease_left(primary, name) > before, timeout=SOON, what="a renewal on the primary")


def waiters_of(server, name):
    """The places of the lock's waiters on this server."""
    with contextlib.suppress(redis.RedisError), server.client() as client:
        return client.zrange(f"rlock:{{{name}}}:waiters", 0, -1)
    return []


def await_waiters(primary, name, count):
    """Return when the lock has `count` waiters; `primary()` is the server to ask."""
    wait_until(
        lambda: len(waiters_of(primary(), name)) == count, timeout=SOON, what=f"{count} to wait for {name}"
    )


def hand_over(lock, name, primary):
    """The seconds from a release until the waiter has the lock."""
    with lock:
        waiter = Waiter(lock)
        await_waiters(primary, name, 1)
    released = time.time()
    waiter.join(SOON)
    return waiter.at - released


def main(url, key):
    print("begins", flush=True)
    lock = ReentrantLock(key, lock_server=RedisLockServer(connect(url)))
    through_outages(lock.acquire)
    print(f"had token {lock.token}", flush=True)
    lock.release()


if __name__ == "__main__":
    main(*sys.argv[1:])
