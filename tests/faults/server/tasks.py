"""The app of the tests of servers in trouble: what users would write, and records of what became of it.

Broker and backend come from the environment; RLOCK_TEST_CONF adds settings as JSON, as the lock's URL,
and RLOCK_TEST_AUTHORITY has them with TLS.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import time

from celery import Celery
from celery.signals import task_postrun, task_prerun

from celery_rlock import LockedTask
from celery_rlock.signals import lock_lost
from tests.support.clients import bare_client

app = Celery("proj", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    rlock_ttl=3,
    rlock_backoff=0.1,
    rlock_backoff_max=0.5,
)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))
if authority := os.environ.get("RLOCK_TEST_AUTHORITY"):
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": authority}
    app.conf.update(broker_use_ssl=tls, redis_backend_use_ssl=tls)

STEP = 0.02


def store():
    """Where the tests look; it is never in trouble."""
    return bare_client(os.environ["RLOCK_TEST_STORE"])


def record(name, event, **fields):
    with store() as client:
        client.rpush(f"record:{name}", json.dumps({"at": time.time(), "event": event, **fields}))


class Recorded(LockedTask):
    """Records each run of the body."""

    abstract = True

    def run_until(self, name, is_over):
        fields = {"id": self.request.id}
        record(name, "start", **fields)
        while not is_over():
            time.sleep(STEP)
        state = {"held": self.lock.held, "lost": self.lock.lost, "token": self.lock.token}
        record(name, "end", **fields, **state)
        return state


def task(**options):
    return app.task(base=Recorded, bind=True, shared=False, lock_key="{name}", **options)


@task()
def retrying(self, name):
    return self.run_until(name, lambda: True)


@task(acks_late=True)
def retrying_late(self, name):
    return self.run_until(name, lambda: True)


@task(lock_unavailable="fail")
def failing(self, name):
    return self.run_until(name, lambda: True)


@task(lock_unavailable="run")
def running(self, name):
    return self.run_until(name, lambda: True)


def is_told(name):
    with store() as client:
        return bool(client.exists(f"told:{name}"))


@task()
def until_told(self, name):
    """Holds the lock until the tests say `told:<name>`."""
    return self.run_until(name, lambda: is_told(name))


@task(lock_ttl=6)
def until_told_long_lease(self, name):
    return self.run_until(name, lambda: is_told(name))


@task(lock_lost="abort")
def until_told_or_lost(self, name):
    return self.run_until(name, lambda: is_told(name))


@task(acks_late=True, reject_on_worker_lost=True)
def dying(self, name):
    """Kills its own process, the first time."""
    if not is_told(name):
        with store() as client:
            client.set(f"told:{name}", 1, ex=600)
        os.kill(os.getpid(), signal.SIGKILL)
    return self.run_until(name, lambda: True)


@task(lock_from="publish")
def once(self, name):
    return self.run_until(name, lambda: True)


@app.task(shared=False)
def publishing(name, queue):
    """Publishes the same twice: the ids."""
    return [once.apply_async((name,), queue=queue, countdown=1).id for _ in range(2)]


@lock_lost.connect
def note_loss(sender, lock, error, **_):
    record(lock.key, "lost", reason=error.reason, owner=error.owner)


@task_prerun.connect
def note_begin(task, **_):
    task.request.began = time.monotonic()


@task_postrun.connect
def note_duration(task, args, **_):
    """Of one attempt: how long a pool slot was taken."""
    record(args[0], "attempt", id=task.request.id, took=time.monotonic() - task.request.began)
