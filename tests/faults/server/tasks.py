"""The project of these tests: tasks with each `lock_unavailable`, and records of what became of them.

RLOCK_TEST_AUTHORITY names a certificate authority, and turns TLS on for broker and backend; the other
variables are those of `tests.support.app`.
"""

from __future__ import annotations

import os
import signal
import ssl
import time

from celery.signals import task_postrun, task_prerun

from celery_rlock import LockedTask
from celery_rlock.signals import lock_lost
from tests.support.app import is_told, make_app, record, store, told, wait_until_told

app = make_app("proj", rlock_ttl=3, rlock_backoff=0.1, rlock_backoff_max=0.5)
if authority := os.environ.get("RLOCK_TEST_AUTHORITY"):
    tls = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": authority}
    app.conf.update(broker_use_ssl=tls, redis_backend_use_ssl=tls)


class RecordedTask(LockedTask):
    """Records the start and the end of each run, and returns the state of its lock."""

    abstract = True

    def recorded(self, name, work=lambda: None):
        record(name, "start", id=self.request.id)
        work()
        state = {"held": self.lock.held, "lost": self.lock.lost, "token": self.lock.token}
        record(name, "end", id=self.request.id, **state)
        return state


def task(**options):
    return app.task(base=RecordedTask, bind=True, shared=False, lock_key="{name}", **options)


@task()
def retrying(self, name):
    return self.recorded(name)


@task(acks_late=True)
def retrying_late(self, name):
    return self.recorded(name)


@task(lock_unavailable="fail")
def failing(self, name):
    return self.recorded(name)


@task(lock_unavailable="run")
def running(self, name):
    return self.recorded(name)


@task()
def until_told(self, name):
    """Hold the lock until the test calls `tell(name)`."""
    return self.recorded(name, lambda: wait_until_told(name))


@task(lock_ttl=6)
def until_told_long_lease(self, name):
    return self.recorded(name, lambda: wait_until_told(name))


@task(lock_lost="abort")
def until_told_or_lost(self, name):
    return self.recorded(name, lambda: wait_until_told(name))


@task(acks_late=True, reject_on_worker_lost=True)
def dying(self, name):
    """The first run kills its own process."""
    if not is_told(name):
        with store() as client:
            client.set(told(name), 1, ex=600)
        os.kill(os.getpid(), signal.SIGKILL)
    return self.recorded(name)


@task(lock_from="publish")
def once(self, name):
    return self.recorded(name)


@app.task(shared=False)
def publish_twice(name, queue):
    """Publish the same call twice, and return both task ids."""
    return [once.apply_async((name,), queue=queue, countdown=1).id for _ in range(2)]


@lock_lost.connect
def record_loss(sender, lock, error, **_):
    record(lock.key, "lost", reason=error.reason, owner=error.owner)


@task_prerun.connect
def note_begin(task, **_):
    task.request.began = time.monotonic()


@task_postrun.connect
def record_duration(task, args, **_):
    """Record for how long one attempt has occupied a pool slot."""
    record(args[0], "attempt", id=task.request.id, took=time.monotonic() - task.request.began)
