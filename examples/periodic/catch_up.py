"""A beat goes on while all workers are stopped. Afterwards there is one run, not one for each tick."""

import os

from celery import Celery

from celery_rlock import LockedTask

MINUTE = 0.1  # seconds, so that the example does not take an hour

app = Celery("catch_up", broker=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
app.conf.task_default_queue = "catch_up"


@app.task
def plain_sync() -> None: ...


@app.task(base=LockedTask, lock_from="publish")  # while one is queued or running, no other is published
def sync() -> None: ...


app.conf.beat_schedule = {
    "without the lock": {"task": plain_sync.name, "schedule": MINUTE},
    "with it": {"task": sync.name, "schedule": MINUTE},
}
