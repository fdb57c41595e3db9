"""The demo's Celery app: a periodic report that takes a while, without the lock and with it."""

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
    lock_ttl=LOCK_TTL,  # when its worker is dead, the lock is free after so many seconds
    lock_backoff=0.2,  # when the lock is busy, the task comes again: after up to 0.2 s, 0.4 s, …
    lock_backoff_max=1,  # … and never later than that
)
def with_lock(self: LockedTask) -> None:
    with recorded(self):
        time.sleep(RUN_SECONDS)


# Which of the two tasks beat publishes. It is also the name of its queue.
ROUND = os.environ.get("DEMO_ROUND", "with_lock")

app.conf.update(
    beat_schedule={"report": {"task": ROUND, "schedule": TICK_SECONDS, "options": {"queue": ROUND}}},
    # A worker that is killed has not acknowledged its message, so the broker delivers it again …
    task_acks_late=True,
    # Celery's own default. With 1, kombu 5.7 may leave a message that it has popped from Redis unread while
    # the worker is busy, and a kill loses it.
    worker_prefetch_multiplier=4,
    broker_transport_options={
        "client_name": os.environ.get("DEMO_WORKER"),
        # … once it has been out for so long. A living worker must be faster than that, or its task would be
        # delivered twice: here a message waits 1 s (lock_backoff_max) and for the runs before it, 1.5 s each.
        "visibility_timeout": 8,
        # How often, in seconds, each worker looks for such messages; kombu's defaults make it 100 s.
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
        # One worker looks at a time; one that is killed just then must not keep the others from it for long.
        "unacked_mutex_expire": 2,
    },
    broker_connection_retry_on_startup=True,
)
