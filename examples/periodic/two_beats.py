"""Two beats, so that one may die; one run for each tick."""

import os

from celery import Celery

from celery_rlock import LockedTask

TICK = 1.0  # seconds; a minute or an hour in real life
HOLD = 0.7  # below the tick by more than a tick may be late

app = Celery("two_beats", broker=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))


@app.task
def plain_report() -> None: ...


@app.task(
    base=LockedTask,
    lock_busy="skip",  # the other beat's tick is running: this one is not needed
    lock_hold_at_least=HOLD,  # … or has just run: it may end before the other beat's tick comes
)
def report() -> None: ...


app.conf.beat_schedule = {
    "without the lock": {"task": plain_report.name, "schedule": TICK},
    "with it": {"task": report.name, "schedule": TICK},
}
