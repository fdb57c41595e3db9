"""What a lock does when something happens to its task. All variants are asked at the same time."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

from celery import Celery

from benchmarks.peers_app import TTL, store
from tests.support.processes import wait_until

EVERY = 0.25
PATIENCE = TTL + 15

_numbers = count(1)
_naming = threading.Lock()


class Record(NamedTuple):
    event: str
    task_id: str
    at: float
    pid: int


def ask_all(apps: Mapping[str, Celery], question: Callable[[Celery], str]) -> dict[str, str]:
    with ThreadPoolExecutor(len(apps)) as pool:
        return dict(zip(apps, pool.map(question, apps.values()), strict=True))


def killed_child(app: Celery) -> str:
    """`kill -9` of the child in mid-run: how long until somebody else runs under the key."""
    key = _key()
    first = _start(app, key, 300)
    store().delete(f"seconds:{key}")
    os.kill(first.pid, signal.SIGKILL)
    killed = time.time()

    def successor() -> Record | None:
        app.tasks["work"].delay(key)
        return next((run for run in _records(key, "start") if run.at > killed), None)

    try:
        start = wait_until(successor, timeout=PATIENCE, every=EVERY, what="a successor").at
    except AssertionError:
        return f"not within {PATIENCE} s"
    return f"{start - killed:.1f} s"


def run_longer_than_its_ttl(app: Celery) -> str:
    """The same call again and again, while a run takes longer than the TTL: how many run at once."""
    key = _key()
    _start(app, key, TTL + 6)
    store().set(f"seconds:{key}", 3)
    end = time.monotonic() + TTL + 8
    while time.monotonic() < end:
        app.tasks["work"].delay(key)
        time.sleep(2 * EVERY)
    return f"{_most_at_once(key)} at once"


def positional_and_keyword(app: Celery) -> str:
    """f(1) while f(a=1) runs."""
    return _while_one_runs(app, lambda key: app.tasks["work"].apply_async(kwargs={"key": key}))


def sent_by_name(app: Celery) -> str:
    """`app.send_task`, which knows the task by its name only, while one runs."""
    return _while_one_runs(app, lambda key: app.send_task("work", (key,)))


def own_retry(app: Celery) -> str:
    """`self.retry()` inside a run: does it run again?"""
    key = _key()
    app.tasks["again"].delay(key)
    try:
        wait_until(lambda: _records(key, "start"), timeout=8, what="the second run")
    except AssertionError:
        return "never runs again"
    return "runs again"


def revoked(app: Celery) -> str:
    """Revoked while it waited for its ETA: is the key free for the next call once that has come?"""
    key = _key()
    result = app.tasks["work"].apply_async((key,), countdown=2)
    time.sleep(0.5)
    app.control.revoke(result.id)
    time.sleep(3)
    app.tasks["work"].delay(key)
    try:
        wait_until(lambda: _records(key, "start"), timeout=5, what="the next call")
    except AssertionError:
        return "stays taken"
    return "free"


def _while_one_runs(app: Celery, call: Callable[[str], object]) -> str:
    key = _key()
    _start(app, key, 3)
    call(key)
    time.sleep(6)
    return f"{_most_at_once(key)} at once"


def _start(app: Celery, key: str, seconds: float) -> Record:
    store().set(f"seconds:{key}", seconds)
    app.tasks["work"].delay(key)
    return wait_until(lambda: _records(key, "start"), timeout=20, what=f"{app.main} to start")[0]


def _key() -> str:
    with _naming:
        return f"key-{next(_numbers)}"


def _records(key: str, event: str) -> list[Record]:
    records = [Record(*json.loads(entry)) for entry in store().lrange(f"record:{key}", 0, -1)]
    return [record for record in records if record.event == event]


def _most_at_once(key: str) -> int:
    moments = [(run.at, 1) for run in _records(key, "start")] + [(run.at, -1) for run in _records(key, "end")]
    running = most = 0
    for _, step in sorted(moments):
        running += step
        most = max(most, running)
    return most
