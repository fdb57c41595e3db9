"""A Django project with locked tasks, whose results and schedule are in its database."""

from __future__ import annotations

import os
import sys
import time

import django

from celery_rlock.django import LockedTask
from tests.support.app import make_app, record

NAME = "two-beats"
SECONDS = 0.3

app = make_app("django_project", result_backend="django-db", result_extended=True, task_default_queue=NAME)


@app.task(base=LockedTask, bind=True, name="tick", lock_key="tick", lock_busy="skip", lock_hold_at_least=0.5)
def tick(self):
    record(NAME, "start", id=self.request.id)
    time.sleep(SECONDS)
    record(NAME, "end", id=self.request.id)


@app.task(base=LockedTask, name="unique", lock_from="publish", lock_key="unique:{number}")
def unique(number): ...


def make_schedule():
    django.setup()
    from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: PLC0415

    every_second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.create(name="tick every second", task="tick", interval=every_second)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.conformance.django_settings")
    sys.exit(make_schedule())
