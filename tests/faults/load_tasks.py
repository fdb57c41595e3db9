"""The app of the fleet: one locked task that tells a journal on disk what it does.

A file, not Redis, because a pod that is cut off from Redis has to tell too. RLOCK_TEST_CONF adds settings,
as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

from celery import Celery

from celery_rlock import LockedTask, LockLost

FILES = Path(os.environ.get("RLOCK_TEST_FILES", "."))
STEP = 0.02
MEGABYTE = 1024 * 1024

app = Celery("fleet", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    rlock_url=os.environ.get("RLOCK_TEST_LOCKS"),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    rlock_ttl=3,
    rlock_lost="abort",
)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))


def tell(event: str, task, key: str) -> None:
    """One line of the journal; the kernel keeps lines that are appended whole apart."""
    line = {"at": time.time(), "event": event, "id": task.request.id, "key": key, "pid": os.getpid()}
    line["pod"] = task.request.hostname
    with (FILES / "journal").open("a") as journal:
        journal.write(json.dumps(line) + "\n")


@contextmanager
def witnessed(task, key: str):
    """Tells when the run starts, ends or is left; an overlap is the kernel's word, by a lock on a file."""
    with (FILES / key).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("overlap", task, key)
        tell("start", task, key)
        try:
            yield
        except LockLost:
            tell("lost its lock", task, key)
            raise
        tell("end", task, key)


def busy_for(seconds: float) -> None:
    """Work that an interrupt can reach at any moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(STEP)


@app.task(
    base=LockedTask,
    bind=True,
    shared=False,
    lock_key="{key}",
    autoretry_for=(LockLost,),
    retry_kwargs={"countdown": 1},
)
def work(self, key: str, seconds: float) -> None:
    with witnessed(self, key):
        busy_for(seconds)


@app.task(base=LockedTask, bind=True, shared=False, lock_key="{key}")
def eat(self, key: str, megabytes: int) -> None:
    """The first run takes more memory than its pod may have; the one after its death takes none."""
    first = not (FILES / f"eaten-{self.request.id}").exists()
    (FILES / f"eaten-{self.request.id}").touch()
    with witnessed(self, key):
        busy_for(0.5)
        ballast = [b"x" * MEGABYTE for _ in range(megabytes if first else 0)]
        busy_for(5 if first else 0)
        del ballast
