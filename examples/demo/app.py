"""The demo's Celery app: one periodic task, without the lock and with it."""

from __future__ import annotations

import os
import time

from celery import Celery, Task

from celery_rlock import LockedTask
from examples.demo.recording import recorded

TICK_SECONDS = 2.0
RUN_SECONDS = 1.5
LOCK_TTL = 3

app = Celery("demo", broker=os.environ.get("DEMO_REDIS_URL"))


@app.task(bind=True, name="without_lock")
def without_lock(self: Task) -> None:
    with recorded(self):
        time.sleep(RUN_SECONDS)


@app.task(
    bind=True,
    name="with_lock",
    base=LockedTask,
    lock_ttl=LOCK_TTL,  # seconds: if the worker dies, the lock is free after this time
    lock_backoff=0.2,  # a waiting task that no release wakes tries again after 0.2 s, 0.4 s, …
    lock_backoff_max=1,  # … and at least every second
)
def with_lock(self: LockedTask) -> None:
    with recorded(self):
        time.sleep(RUN_SECONDS)


# The task that beat publishes. Its queue has the same name.
ROUND = os.environ.get("DEMO_ROUND", "with_lock")

app.conf.update(
    beat_schedule={"report": {"task": ROUND, "schedule": TICK_SECONDS, "options": {"queue": ROUND}}},
    # A killed worker has not acknowledged its message, so the broker delivers the message again …
    task_acks_late=True,
    # This is Celery's default. With 1, kombu 5.7 can pop a message from Redis and leave it unread while the
    # worker is busy. If the worker is killed then, the message is lost.
    worker_prefetch_multiplier=4,
    broker_transport_options={
        "client_name": os.environ.get("DEMO_WORKER"),
        # … after this many seconds. A living worker must acknowledge sooner, or its task is delivered twice.
        # Here a message waits at most 1 s (lock_backoff_max) and for the runs before it, 1.5 s each.
        "visibility_timeout": 8,
        # Each worker looks for such messages every 0.5 s. With kombu's defaults it would be 100 s.
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
        # One worker at a time looks for them. If it is killed just then, another one may look after 2 s.
        "unacked_mutex_expire": 2,
    },
    broker_connection_retry_on_startup=True,
)
