"""A process whose threads take a lock in turn: `python -m tests.worker.contender URL KEY THREADS ROUNDS`.

Under the lock each thread adds one to a counter in Redis, by a read and a write. Without the lock that would
lose additions.
"""

from __future__ import annotations

import sys
import threading
import time

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.clients import bare_client
from tests.support.daemon import Daemon


class Contender(Daemon):
    """Such a process. It is ready as soon as it runs, because it may have to wait for the lock."""

    def __init__(self, server, key, *, threads=1, rounds=1):
        super().__init__("contender")
        self._args = [server.url, key, str(threads), str(rounds)]

    def command(self):
        return [sys.executable, "-m", __name__, *self._args]

    def is_ready(self):
        return "begins" in self.log


def counter(key):
    return f"counter:{key}"


def contend(url, key, rounds):
    lock = ReentrantLock(key, lock_server=RedisLockServer(connect(url)))
    with bare_client(url) as client:
        for _ in range(rounds):
            with lock:
                seen = int(client.get(counter(key)) or 0)
                time.sleep(0.002)
                client.set(counter(key), seen + 1, ex=60)


def main(url, key, threads, rounds):
    print("begins", flush=True)
    contenders = [threading.Thread(target=contend, args=(url, key, int(rounds))) for _ in range(int(threads))]
    for thread in contenders:
        thread.start()
    for thread in contenders:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
