"""`kill -9` of a pool child that holds the lock: until the lock is free, and until the next holder runs.

    python -m benchmarks.crash [kills]

One prefork worker, a lease of 30 s, a waiter whose backoff is at most 0.3 s; with the reaper and without it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time

from tests.support.processes import wait_until
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

APP = "tests.integration.proj:app"


def kill_holder(proj, key: str) -> tuple[float, float]:
    """Milliseconds from the kill until the lock is not the victim's any more, and until the waiter runs."""
    store = proj.store()
    victim = proj.work.delay(key, 60)
    wait_until(lambda: store.llen(f"record:{key}"), timeout=20, what="the holder")
    waiter = proj.work.delay(key, 0)
    time.sleep(0.5)
    pid = holder_pid(proj, victim.id)
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not held_by(store, key, victim.id), timeout=60, what="the release", every=0.002)
    free = time.time() - killed
    waiter.get(timeout=25)
    entries = [json.loads(entry) for entry in store.lrange(f"record:{key}", 0, -1)]
    start = next(entry["at"] for entry in entries if entry["id"] == waiter.id)
    return free * 1000, (start - killed) * 1000


def held_by(store, key: str, task_id: str) -> bool:
    return any(field.decode().endswith(task_id) for field in store.hkeys(f"rlock:{{{key}}}"))


def holder_pid(proj, task_id: str) -> int:
    active = proj.app.control.inspect(timeout=2).active() or {}
    return next(task["worker_pid"] for tasks in active.values() for task in tasks if task["id"] == task_id)


def measure(url: str, kills: int, *, reaper: bool) -> None:
    conf = json.dumps({"rlock_reaper": reaper})
    environment = {"RLOCK_TEST_BROKER": url, "RLOCK_TEST_BACKEND": url, "RLOCK_TEST_STORE": url}
    os.environ.update(environment)
    from tests.integration import proj  # noqa: PLC0415 - it reads the environment

    with Worker.start(APP, concurrency=3, env={**environment, "RLOCK_TEST_CONF": conf}):
        times = [kill_holder(proj, f"crash-{reaper}-{turn}") for turn in range(kills)]
    name = "with the reaper" if reaper else "without it"
    for what, column in (("lock free", 0), ("next holder runs", 1)):
        taken = sorted(time[column] for time in times)
        print(f"{name:16} {what:17} p50 {statistics.median(taken):6.0f} ms   worst {taken[-1]:6.0f} ms")


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with Server.start(available_kinds()[0]) as server:
        measure(server.url, kills, reaper=True)
        measure(server.url, max(3, kills // 4), reaper=False)


if __name__ == "__main__":
    main()
