"""Two beats, so that one may fail, and one run for each tick."""

import os

from celery import Celery

from celery_rlock import LockedTask

TICK = 1.0  # seconds; a minute or an hour in real life
HOLD = 0.7  # shorter than a tick; the difference is how late a tick may be

app = Celery("two_beats", broker=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))


@app.task
def plain_report() -> None: ...


@app.task(
    base=LockedTask,
    lock_busy="skip",  # the task of the other beat is running, so this one is not needed
    lock_hold_at_least=HOLD,  # the lock outlasts a short run, so a late second tick is skipped too
)
def report() -> None: ...


app.conf.beat_schedule = {
    "without the lock": {"task": plain_report.name, "schedule": TICK},
    "with it": {"task": report.name, "schedule": TICK},
}
