"""The project of these tests: tasks that end in every way, and records of which run did what and when.

RLOCK_TEST_FILES names a directory for the file locks that detect overlaps; the other variables are those of
`tests.support.app`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from celery.worker.request import Request

from celery_rlock import LockedTask
from tests.support.app import busy_for, make_app, record, store

app = make_app("proj", rlock_backoff=0.05, rlock_backoff_max=0.1)


@contextmanager
def no_overlap(name, **fields):
    """Record an overlap and raise when another living process runs under `name`.

    The kernel drops a file lock when the process that has it dies, and not before.
    """
    with (Path(os.environ["RLOCK_TEST_FILES"]) / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            record(name, "overlap", **fields)
            raise
        yield


class RecordedTask(LockedTask):
    """Records its start, its end if the run gets there, and the moment when Python leaves the run."""

    abstract = True

    def count_run(self):
        """Count this run; how many runs of this task id there were, with this one."""
        with store() as client:
            return client.incr(f"runs:{self.request.id}")

    @contextmanager
    def recorded(self, name):
        fields = {"id": self.request.id, "retries": self.request.retries, "pid": os.getpid()}
        with no_overlap(name, **fields):
            record(name, "start", **fields)
            try:
                yield
                record(name, "end", **fields)
            finally:
                record(name, "left", **fields)


def task(**options):
    options = {"lock_key": "{name}", **options}
    return app.task(base=RecordedTask, bind=True, shared=False, **options)


def busy_in_c_for(seconds):
    """Spend about `seconds` in one C call, which keeps the GIL and handles no signal."""
    probe = 1_000_000
    start = time.perf_counter()
    sum(repeat(1, probe))
    sum(repeat(1, int(probe * seconds / (time.perf_counter() - start))))


def run_victim(self, name, how, seconds):
    """The first run of a task id does what `how` says. A later run ends at once."""
    first = self.count_run() == 1
    with self.recorded(name):
        if not first:
            return "again"
        if how == "exit":
            busy_for(seconds)
            os._exit(3)
        if how == "ignore SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if how == "in C":
            busy_in_c_for(seconds)
        elif how == "large":
            self.ballast = bytearray(64 * 1024 * 1024)
        else:
            busy_for(seconds)
    return how


@task()
def victim(self, name, how="loop", seconds=60):
    return run_victim(self, name, how, seconds)


@task(acks_late=True, reject_on_worker_lost=True)
def late_victim(self, name, how="loop", seconds=60):
    return run_victim(self, name, how, seconds)


@task(acks_late=True, reject_on_worker_lost=True, lock_ttl=3)
def short_lease_victim(self, name, how="loop", seconds=60):
    return run_victim(self, name, how, seconds)


@task()
def work(self, name, seconds=0.0):
    with self.recorded(name):
        busy_for(seconds)
    return self.request.id


def run_redelivered(self, name, how, seconds):
    """The first run takes `seconds`. Its own retry, and a run after its death, end at once."""
    first = self.count_run() == 1
    with self.recorded(name):
        busy_for(seconds if first else 0)
    if how == "failure":
        raise ValueError(how)
    if how == "retry" and self.request.retries == 0:
        raise self.retry(countdown=0)
    return [how, self.request.retries]


@task(acks_late=True)
def redelivered_retry(self, name, how, seconds):
    return run_redelivered(self, name, how, seconds)


@task(acks_late=True, lock_busy="skip")
def redelivered_skip(self, name, how, seconds):
    return run_redelivered(self, name, how, seconds)


@task(acks_late=True, lock_busy="fail")
def redelivered_fail(self, name, how, seconds):
    return run_redelivered(self, name, how, seconds)


class OwnRequest(Request):
    """A request class of the user, written as Celery's documentation shows it. It does not know the lock."""


class TaskWithOwnRequest(LockedTask):
    abstract = True
    Request = OwnRequest


@app.task(base=TaskWithOwnRequest, shared=False)
def with_own_request():
    """No test runs it: a worker warns about it when it starts."""
