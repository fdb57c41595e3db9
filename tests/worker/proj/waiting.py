"""Tasks of the tests of waking. Their backoff is a minute, so only waking explains a quick start."""

from __future__ import annotations

import os
import threading

from tests.support.app import record, store, wait_until_told
from tests.worker.proj.app import Recorded, app

#: The lease is longer than the backoff: a waiter looks again when the holder's lease ends.
LEASE = 120.0
BACKOFF = 60.0


class ReturnsItsId(Recorded):
    abstract = True

    def work_for(self, name, seconds):
        self.span(name, seconds)
        return self.request.id


def task(**options):
    defaults = {
        "lock_key": "{name}",
        "lock_ttl": LEASE,
        "lock_backoff": BACKOFF,
        "lock_backoff_max": BACKOFF,
        "lock_jitter": False,
    }
    return app.task(base=ReturnsItsId, bind=True, shared=False, **{**defaults, **options})


@task()
def work(self, name, seconds=0.0):
    return self.work_for(name, seconds)


@task(acks_late=True)
def late(self, name, seconds=0.0):
    return self.work_for(name, seconds)


@task(lock_ttl=2)
def short_lease(self, name, seconds=0.0):
    return self.work_for(name, seconds)


@task(lock_limit=3, lock_ttl=2)
def one_of_three(self, name, seconds=0.0):
    return self.work_for(name, seconds)


@task()
def until_told(self, name):
    """Keeps its pool slot until the test calls `tell(name)`."""
    record(name, "start", id=self.request.id)
    wait_until_told(name)


@task(lock_backoff=0.2, lock_backoff_max=0.2, lock_max_attempts=4)
def impatient(self, name):
    return self.work_for(name, 0)


@task(lock_max_attempts=2)
def patient(self, name):
    return self.work_for(name, 0)


def retry_twice_then_skip(this, error):
    record(f"asked:{error.key}", "asked")
    with store() as client:
        return "retry" if client.llen(f"record:asked:{error.key}") < 3 else "skip"


@task(lock_busy=retry_twice_then_skip, lock_backoff=0.3, lock_backoff_max=0.3)
def choosing(self, name):
    return self.work_for(name, 0)


def retry_when_told(this, error):
    record(f"asked:{error.key}", "asked")
    wait_until_told(error.key)
    return "retry"


@task(acks_late=True, lock_busy=retry_when_told)
def late_and_slow_to_wait(self, name):
    return self.work_for(name, 0)


@task(lock_backoff=1, lock_backoff_max=1)
def soon_again(self, name):
    return self.work_for(name, 0)


@task(lock_backoff=0.5, lock_backoff_max=30, lock_jitter=True)
def with_the_default_backoff(self, name):
    return self.work_for(name, 0)


@task(lock_backoff=1)
def soon_then_late(self, name):
    return self.work_for(name, 0)


@task(lock_backoff=1, lock_backoff_max=1, lock_busy=lambda *_: "retry")
def asked_every_second(self, name):
    return self.work_for(name, 0)


@task(rate_limit="1000/s")
def rate_limited(self, name):
    return self.work_for(name, 0)


def made_where(name):
    record(f"made:{name}", "made", pid=os.getpid(), thread=threading.current_thread().name)
    return name


@task(lock_key=made_where)
def with_a_key_of_its_own_code(self, name):
    return self.work_for(name, 0)


@task(lock_wait=30, lock_busy="fail")
def in_place(self, name):
    return self.work_for(name, 0)


@task(lock_wait=1, lock_busy="fail")
def in_place_briefly(self, name):
    return self.work_for(name, 0)
