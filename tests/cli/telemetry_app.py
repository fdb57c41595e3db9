"""The Celery app of the tests of events, metrics and logs; RLOCK_TEST_CONF adds settings as JSON."""

from __future__ import annotations

import json
import logging
import os
import time

from celery import Celery
from celery.signals import after_setup_logger

from celery_rlock import LockedTask, settings

app = Celery("telemetry", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    rlock_backoff=0.3,
    rlock_backoff_max=1,
)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))


class AsJson(logging.Formatter):
    def format(self, record):
        fields = ("name", "levelname", "key", "owner", "task_id")
        return json.dumps({"text": record.getMessage(), **{name: vars(record).get(name) for name in fields}})


@after_setup_logger.connect
def log_as_json(logger, **_):
    """Write every log line about a lock, with its fields, to the file RLOCK_TEST_LOG."""
    path = os.environ.get("RLOCK_TEST_LOG")
    if path:
        handler = logging.FileHandler(path)
        handler.setFormatter(AsJson())
        handler.addFilter(lambda record: record.name.startswith("celery_rlock"))
        logger.addHandler(handler)


def locked(**options):
    return app.task(base=LockedTask, bind=True, shared=False, lock_key="{name}", **options)


def work_for(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@locked()
def work(self, name, seconds=0.0):
    work_for(seconds)
    return {"owner": self.lock.owner, "token": self.lock.token}


@locked(lock_busy="skip")
def skipping(self, name):
    return self.lock.token


@locked(lock_busy="replace")
def replacing(self, name, seconds=0.0):
    work_for(seconds)


@locked(lock_busy="fail")
def failing(self, name):
    return self.lock.token


@locked(lock_busy="fail", lock_wait=30)
def waiting(self, name):
    return self.lock.token


@locked(lock_ttl=0.6)
def losing(self, name):
    """Deletes its own lock, and waits until it notices the loss."""
    settings.redis_server(app).client.delete(settings.server(app).redis_keys(name).lock)
    end = time.monotonic() + 20
    while not self.lock.lost and time.monotonic() < end:
        time.sleep(0.01)
    return self.lock.lost


@locked(send_events=False)
def quiet(self, name):
    return self.lock.token


@locked(max_retries=1)
def retrying(self, name):
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return sorted(self.request.headers or {})


@locked(lock_unavailable="run")
def carefree(self, name):
    return self.lock.held


@locked()
def dying(self, name):
    os.kill(os.getpid(), 9)


@locked(lock_from="publish")
def once(self, name, seconds=0.0):
    work_for(seconds)


@locked(lock_from="publish", lock_pending=1, lock_duplicate="replace")
def newest(self, name):
    pass


@app.task(shared=False)
def plain(name, seconds=0.0):
    work_for(seconds)
