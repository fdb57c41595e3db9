"""The app of the fleets under load: its tasks write what they do to a journal on disk.

RLOCK_TEST_FILES names the journal's directory; the other variables are those of `tests.support.app`.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

from celery_rlock import LockedTask, LockLost
from tests.support.app import busy_for, make_app

FILES = Path(os.environ.get("RLOCK_TEST_FILES", "."))
MEGABYTE = 1024 * 1024

app = make_app(
    "fleet",
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    rlock_ttl=3,
    rlock_lost="abort",
)


def write(event: str, task, key: str) -> None:
    """Append one line to the journal; the kernel does not mix lines that are appended in one piece."""
    line = {"at": time.time(), "event": event, "id": task.request.id, "key": key, "pid": os.getpid()}
    line["pod"] = task.request.hostname
    with (FILES / "journal").open("a") as journal:
        journal.write(json.dumps(line) + "\n")


@contextmanager
def journaled(task, key: str):
    """Write the start, the end and a lost lock. A file lock of the kernel tells whether two runs overlap."""
    with (FILES / key).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            write("overlap", task, key)
        write("start", task, key)
        try:
            yield
        except LockLost:
            write("lost its lock", task, key)
            raise
        write("end", task, key)


@app.task(
    base=LockedTask,
    bind=True,
    shared=False,
    lock_key="{key}",
    autoretry_for=(LockLost,),
    retry_kwargs={"countdown": 1},
)
def work(self, key: str, seconds: float) -> None:
    with journaled(self, key):
        busy_for(seconds)


@app.task(base=LockedTask, bind=True, shared=False, lock_key="{key}")
def fill_memory(self, key: str, megabytes: int) -> None:
    """The first run takes more memory than its pod may use; a later run takes none."""
    mark = FILES / f"filled-{self.request.id}"
    first = not mark.exists()
    mark.touch()
    with journaled(self, key):
        busy_for(0.5)
        ballast = [b"x" * MEGABYTE for _ in range(megabytes if first else 0)]
        busy_for(5 if first else 0)
        del ballast
