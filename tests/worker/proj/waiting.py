"""The app of the waking tests: a backoff of a minute, so that only waking explains a quick start.

Broker and backend come from the environment; RLOCK_TEST_CONF adds settings as JSON, as the lock's URL.
"""

from __future__ import annotations

import json
import os
import time

from celery import Celery

from celery_rlock import LockedTask
from tests.support.clients import bare_client

app = Celery("proj", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    rlock_ttl=120,  # no backoff is longer than what is left of the lease
    rlock_backoff=60,
    rlock_backoff_max=60,
    rlock_jitter=False,
)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))

STEP = 0.01


def store():
    """The tests' own view of the backend's server."""
    return bare_client(os.environ["RLOCK_TEST_BACKEND"])


def record(name, event, **fields):
    with store() as client:
        client.rpush(f"record:{name}", json.dumps({"at": time.time(), "event": event, **fields}))


class Recorded(LockedTask):
    """Records when each run began and ended."""

    abstract = True

    def work_for(self, name, seconds):
        fields = {"id": self.request.id, "worker": self.request.hostname}
        record(name, "start", **fields)
        time.sleep(seconds)
        record(name, "end", **fields)
        return self.request.id


def task(**options):
    return app.task(base=Recorded, bind=True, shared=False, lock_key="{name}", **options)


@task()
def work(self, name, seconds=0.0):
    return self.work_for(name, seconds)


@task(acks_late=True)
def late(self, name, seconds=0.0):
    return self.work_for(name, seconds)


@task(lock_ttl=2)
def short_lease(self, name, seconds=0.0):
    return self.work_for(name, seconds)


def wait_until_told(name):
    """Until the tests say `told:<name>`."""
    with store() as client:
        while not client.exists(f"told:{name}"):
            time.sleep(STEP)


@task()
def until_told(self, name):
    """Keeps its pool slot."""
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


@task(rate_limit="1000/s")
def rate_limited(self, name):
    return self.work_for(name, 0)


@task(lock_wait=30, lock_busy="fail")
def in_place(self, name):
    return self.work_for(name, 0)


@task(lock_wait=1, lock_busy="fail")
def in_place_briefly(self, name):
    return self.work_for(name, 0)
