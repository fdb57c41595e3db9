"""What each lock does in special cases. All variants are measured at the same time.

python -m benchmarks.peers_behaviour [page …]
"""

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

from benchmarks.figures import options, publish, table
from benchmarks.peers_app import PLAIN, PLAIN_AGAIN, TTL, VARIANTS, build, fleet, store
from tests.support.processes import wait_until
from tests.support.servers import Server, available_kinds

EVERY = 0.25
PATIENCE = TTL + 15

_numbers = count(1)
_naming = threading.Lock()


class Record(NamedTuple):
    event: str
    task_id: str
    at: float
    pid: int


def main() -> None:
    asked = options(__doc__)
    with Server.start(available_kinds()[0]) as server:
        os.environ["PEERS_URL"] = server.url
        locks = {kind: build(kind) for kind in VARIANTS if kind not in (PLAIN, PLAIN_AGAIN)}
        with fleet(locks, concurrency=4):
            answers = [ask_all(locks, question) for question in QUESTIONS.values()]
    rows = [(kind, *(answer[kind] for answer in answers)) for kind in locks]
    publish(asked.pages, "behaviour", table(("", *QUESTIONS), rows, align="---"))


def ask_all(apps: Mapping[str, Celery], question: Callable[[Celery], str]) -> dict[str, str]:
    with ThreadPoolExecutor(len(apps)) as pool:
        return dict(zip(apps, pool.map(question, apps.values()), strict=True))


def killed_child(app: Celery) -> str:
    """`kill -9` of the child during a run: how long until another task runs under the key?"""
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
    """A run takes longer than the TTL, and the same call is repeated: how many run at the same time?"""
    key = _key()
    _start(app, key, TTL + 6)
    store().set(f"seconds:{key}", 3)
    end = time.monotonic() + TTL + 8
    while time.monotonic() < end:
        app.tasks["work"].delay(key)
        time.sleep(2 * EVERY)
    return f"{_most_at_once(key)} at once"


def positional_and_keyword(app: Celery) -> str:
    """f(1) is called while f(a=1) runs."""
    return _while_one_runs(app, lambda key: app.tasks["work"].apply_async(kwargs={"key": key}))


def sent_by_name(app: Celery) -> str:
    """`app.send_task`, which knows only the name of the task, is called while one runs."""
    return _while_one_runs(app, lambda key: app.send_task("work", (key,)))


def own_retry(app: Celery) -> str:
    """A run calls `self.retry()`: does the task run again?"""
    key = _key()
    app.tasks["again"].delay(key)
    try:
        wait_until(lambda: _records(key, "start"), timeout=8, what="the second run")
    except AssertionError:
        return "never runs again"
    return "runs again"


def revoked(app: Celery) -> str:
    """A task is revoked while it waits for its ETA: is the key free for the next call afterwards?"""
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


QUESTIONS = {
    "killed": killed_child,
    "long run": run_longer_than_its_ttl,
    "`f(1)`, `f(a=1)`": positional_and_keyword,
    "`send_task`": sent_by_name,
    "`self.retry()`": own_retry,
    "revoked": revoked,
}

if __name__ == "__main__":
    main()
