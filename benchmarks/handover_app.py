"""The app of benchmarks.handover: the same work under three kinds of lock, and records of when it ran.

Broker and backend come from CELERY_BROKER_URL and CELERY_RESULT_BACKEND. With HANDOVER_WAKING=off nobody who
waits in this worker is woken.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache

import redis
from celery import Celery
from celery.signals import task_postrun, task_prerun
from celery.states import SUCCESS

from celery_rlock import LockedTask
from celery_rlock.signals import lock_busy
from celery_rlock.worker.waking import WakeWaiters

TTL = 30

app = Celery("handover", set_as_current=False)
plain = Celery("plain", set_as_current=False)  # no task of its own, none of them locked
for each in (app, plain):
    each.conf.broker_connection_retry_on_startup = True


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["CELERY_BROKER_URL"])


def work(seconds: float) -> tuple[float, float]:
    """When it began and when it ended. What calls it releases the lock at once afterwards."""
    start = time.time()
    time.sleep(seconds)
    return start, time.time()


@app.task(base=LockedTask, shared=False, lock_key="{key}")
def locked(key: str, seconds: float):  # noqa: ARG001 - the lock is all that it is for
    return work(seconds)


@app.task(bind=True, shared=False, max_retries=None)
def retrying(self, key: str, seconds: float):
    lock = store().lock(key, timeout=TTL)
    if not lock.acquire(blocking=False):
        note_answer(self)
        raise self.retry(countdown=1)
    try:
        return work(seconds)
    finally:
        lock.release()


@app.task(shared=False)
def blocking(key: str, seconds: float):
    with store().lock(key, timeout=TTL):
        return work(seconds)


@task_prerun.connect
def note_arrival(task, **_) -> None:
    task.request.came = time.time()


@lock_busy.connect
def note_answer(sender, **_) -> None:
    sender.request.answered = time.time()


@task_postrun.connect
def record(task, args, retval, state, **_) -> None:
    """By now the lock is free: what this costs is in nobody's way."""
    gone = time.time()
    if state == SUCCESS:
        kind, (answered, end) = "runs", retval
    else:
        kind, answered, end = "attempts", task.request.answered, gone
    store().rpush(f"{kind}:{args[0]}", json.dumps((task.request.came, answered, end)))


if os.environ.get("HANDOVER_WAKING") == "off":
    app.finalize()  # binds the tasks, which is when they install the worker's steps
    app.steps["consumer"].remove(WakeWaiters)
