"""The app of the fault tests: tasks that die in every way, and records of what ran when.

Broker and backend come from the environment; RLOCK_TEST_CONF adds settings as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from celery import Celery

from celery_rlock import LockedTask
from tests.support.clients import bare_client

app = Celery("proj", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    rlock_backoff=0.05,
    rlock_backoff_max=0.1,
)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))

STEP = 0.02


def store():
    """The tests' own view of the server, past every proxy."""
    return bare_client(os.environ["RLOCK_TEST_BACKEND"])


def record(name, event, at=None, **fields):
    with store() as client:
        entry = {"at": at or time.time(), "event": event, "pid": os.getpid(), **fields}
        client.rpush(f"record:{name}", json.dumps(entry))


@contextmanager
def alone(name, **fields):
    """The kernel's word on overlaps: it drops a file's lock with the process that has it, and not before."""
    with (Path(os.environ["RLOCK_TEST_FILES"]) / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            record(name, "overlap", **fields)
            raise
        yield


class Recorded(LockedTask):
    """Records its start, its end if it comes to it, and when Python left the run, if it could."""

    abstract = True

    def runs_of_this_task(self):
        with store() as client:
            return client.incr(f"runs:{self.request.id}")

    @contextmanager
    def recorded(self, name):
        fields = {"id": self.request.id, "retries": self.request.retries, "token": self.lock.token}
        fields["worker"] = self.request.hostname
        with alone(name, **fields):
            record(name, "start", **fields)
            try:
                yield
                record(name, "end", **fields)
            finally:
                record(name, "left", **fields)


def task(**options):
    options = {"lock_key": "{name}", **options}
    return app.task(base=Recorded, bind=True, shared=False, **options)


def busy_for(seconds):
    """Work that an interrupt can reach at any moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(STEP)


def busy_in_c_for(seconds):
    """About so long in one C call that keeps the GIL and looks at no signal."""
    probe = 1_000_000
    start = time.perf_counter()
    sum(repeat(1, probe))
    sum(repeat(1, int(probe * seconds / (time.perf_counter() - start))))


def die(self, name, how, seconds):
    """The first run of a task id does `how`; one that comes after it ends at once."""
    again = self.runs_of_this_task() > 1
    with self.recorded(name):
        if again:
            return "again"
        if how == "exit":
            busy_for(seconds)
            os._exit(3)
        if how == "deaf":
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
    return die(self, name, how, seconds)


@task(acks_late=True, reject_on_worker_lost=True)
def late_victim(self, name, how="loop", seconds=60):
    return die(self, name, how, seconds)


@task(acks_late=True, reject_on_worker_lost=True, lock_ttl=3)
def short_lease_victim(self, name, how="loop", seconds=60):
    return die(self, name, how, seconds)


@task()
def work(self, name, seconds=0.0):
    with self.recorded(name):
        busy_for(seconds)
    return self.request.id


@task(acks_late=True, reject_on_worker_lost=True, lock_ttl=3)
def late(self, name, seconds=0.0):
    with self.recorded(name):
        busy_for(seconds)
    return self.request.id


def end_as(self, name, how, seconds):
    """The first run ends as told; the retry that it asks for, and a copy after its death, succeed at once."""
    first = self.runs_of_this_task() == 1
    with self.recorded(name):
        busy_for(seconds if first else 0)
    if how == "failure":
        raise ValueError(how)
    if how == "retry" and self.request.retries == 0:
        raise self.retry(countdown=0)
    return [how, self.request.retries]


@task(acks_late=True)
def delivered_twice(self, name, how, seconds):
    return end_as(self, name, how, seconds)


@task(acks_late=True, lock_busy="skip")
def delivered_twice_or_skipped(self, name, how, seconds):
    return end_as(self, name, how, seconds)


@task(acks_late=True, lock_busy="fail")
def delivered_twice_or_failed(self, name, how, seconds):
    return end_as(self, name, how, seconds)
