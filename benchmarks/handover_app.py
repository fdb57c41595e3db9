"""The app of benchmarks.handover: the same work under three kinds of lock, with records of each run.

Broker and backend come from CELERY_BROKER_URL and CELERY_RESULT_BACKEND. With HANDOVER_WAKING=off, a release
wakes no task that waits in this worker.
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

TTL = 30

app = Celery("handover", set_as_current=False)
app.conf.broker_connection_retry_on_startup = True


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["CELERY_BROKER_URL"])


def work(seconds: float) -> tuple[float, float]:
    """Returns when the work began and ended. The caller releases the lock right after it."""
    start = time.time()
    time.sleep(seconds)
    return start, time.time()


@app.task(base=LockedTask, shared=False, lock_key="{key}")
def locked(key: str, seconds: float):  # noqa: ARG001 - only lock_key uses it
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
    """The lock is free by now, so the time of this call does not count."""
    gone = time.time()
    if task.app is not app:  # a test process has other apps too
        return
    if state == SUCCESS:
        kind, (answered, end) = "runs", retval
    else:
        kind, answered, end = "attempts", task.request.answered, gone
    store().rpush(f"{kind}:{args[0]}", json.dumps((task.request.came, answered, end)))


if os.environ.get("HANDOVER_WAKING") == "off":
    app.finalize()  # binds the tasks, which then register the worker's steps
    app.steps["consumer"].remove("celery_rlock.worker.bootsteps:WakeWaiters")
