"""The app of the fleet: its tasks write down what they believe about their locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from celery.exceptions import SoftTimeLimitExceeded

from celery_rlock import LockedTask, LockLost, signals
from tests.nemesis import mutations, routes
from tests.nemesis.history import Recorder, clock
from tests.support.app import make_app

FILES = Path(os.environ.get("NEMESIS_DIRECTORY", "."))
LOOK_EVERY = 0.01
WRITE_EVERY = 0.05
LIMITS = {"pair": 2}

routes.install()
mutations.install(os.environ.get("NEMESIS_MUTATION", ""))
recorder = Recorder(FILES, "fleet")
app = make_app(
    "nemesis",
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    rlock_lost="abort",
    rlock_backoff=0.2,
    rlock_backoff_max=1,
)


class Watched(LockedTask):
    """Writes down how it fails."""

    abstract = True

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        recorder.write("failed", id=task_id, why=repr(exc), who=who(task_id))


def who(task_id):
    return f"{os.getpid()}/{task_id}"


def about(what, task, key, *, at=None, **fields):
    """Append an event about the run's lock."""
    lock = task.lock
    fields |= {"key": key, "owner": lock.owner.partition("/")[2], "token": lock.token}
    fields |= {"who": who(task.request.id), "limit": LIMITS.get(key, 1), "parent": os.getppid()}
    recorder.write(what, at=at, **fields)


@signals.lock_lost.connect(weak=False)
def note_loss(sender, lock, request, **_):
    about("told", _Lost(lock, request), lock.key)


class _Lost:
    def __init__(self, lock, request):
        self.lock, self.request = lock, request


@contextlib.contextmanager
def file_of(task, key):
    """The kernel's word: only one process at a time has the lock on the file of a key."""
    if LIMITS.get(key, 1) > 1:
        yield
        return
    with (FILES / f"{key}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            about("conflict", task, key)
        yield


def hold(task, key, seconds):
    until, written = clock() + seconds, 0.0
    while True:
        at, lease = clock(), task.lock._lock.leases[0]
        deadline = lease.deadline
        if not task.lock.held:
            task.lock.ensure()
        if at >= until or at >= written + WRITE_EVERY:
            about("held", task, key, at=at, deadline=deadline, asked=lease.since)
            written = at
        if at >= until:
            return
        time.sleep(max(0.0, min(LOOK_EVERY, until - at)))


def run(task, key, seconds):
    try:
        with file_of(task, key):
            hold(task, key, 0.02 if task.request.retries else seconds)
            about("leaving", task, key)
    except SoftTimeLimitExceeded:
        pass  # a retry would publish, and Celery drops a message whose retry a second signal interrupts
    about("end", task, key, id=task.request.id)


options = {
    "base": Watched,
    "bind": True,
    "shared": False,
    "lock_key": "{key}",
    "autoretry_for": (LockLost,),
    "retry_kwargs": {"countdown": 0.2, "max_retries": None},
}


@app.task(**options)
def work(self, key: str, seconds: float) -> None:
    run(self, key, seconds)


@app.task(**options, lock_limit=2)
def work_in_pairs(self, key: str, seconds: float) -> None:
    run(self, key, seconds)
