"""After kill -9 of the pool child that held a lock: when is the lock free, and when does the next task run?

    python -m benchmarks.crash [kills]

One prefork worker, a lease of 30 s, and one waiting task. It measures with the reaper, which notices dead
children at once, and without it, when the pool looks for them every few seconds.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from functools import cache

import redis
from celery import Celery

from celery_rlock import LockedTask
from tests.support.processes import wait_until
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

URL = os.environ.get("CRASH_URL")

app = Celery("crash", broker=URL, backend=URL, set_as_current=False)
app.conf.update(
    rlock_reaper=os.environ.get("CRASH_REAPER") == "on",
    broker_connection_retry_on_startup=True,
)


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(app.conf.broker_url)


@app.task(base=LockedTask, bind=True, name="hold", shared=False, lock_key="{key}", lock_backoff_max=0.3)
def hold(self: LockedTask, key: str, seconds: float) -> None:
    started = {"id": self.request.id, "pid": os.getpid(), "at": time.time()}
    store().rpush(f"started:{key}", json.dumps(started))
    time.sleep(seconds)


def kill_holder(key: str) -> tuple[float, float]:
    """Milliseconds from the kill until the lock is free, and until the waiting task runs."""
    victim = hold.delay(key, 60)
    holder = wait_until(lambda: started(key, victim.id), timeout=20, what="the holder")
    waiter = hold.delay(key, 0)
    time.sleep(0.5)  # the task finds the lock busy, and waits
    killed = time.time()
    os.kill(holder["pid"], signal.SIGKILL)
    wait_until(lambda: not held_by(key, victim.id), timeout=60, what="the release", every=0.002)
    free = time.time() - killed
    waiter.get(timeout=25)
    return free * 1000, (started(key, waiter.id)["at"] - killed) * 1000


def started(key: str, task_id: str) -> dict | None:
    entries = map(json.loads, store().lrange(f"started:{key}", 0, -1))
    return next((entry for entry in entries if entry["id"] == task_id), None)


def held_by(key: str, task_id: str) -> bool:
    return any(field.decode().endswith(task_id) for field in store().hkeys(f"rlock:{{{key}}}"))


def measure(kills: int, *, reaper: bool) -> None:
    environment = {"CRASH_URL": app.conf.broker_url, "CRASH_REAPER": "on" if reaper else "off"}
    with Worker.start("benchmarks.crash:app", concurrency=3, env=environment):
        times = [kill_holder(f"crash-{reaper}-{turn}") for turn in range(kills)]
    name = "with the reaper" if reaper else "without it"
    for what, column in (("lock free", 0), ("next holder runs", 1)):
        taken = sorted(time[column] for time in times)
        print(f"{name:16} {what:17} p50 {statistics.median(taken):6.0f} ms   worst {taken[-1]:6.0f} ms")


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with Server.start(available_kinds()[0]) as server:
        app.conf.update(broker_url=server.url, result_backend=server.url)
        measure(kills, reaper=True)
        measure(max(3, kills // 4), reaper=False)


if __name__ == "__main__":
    main()
