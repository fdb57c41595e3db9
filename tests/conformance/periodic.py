"""Entries of django-celery-beat: `python -m tests.conformance.periodic make|show TASK …`."""

from __future__ import annotations

import json
import sys

import django

django.setup()

from django_celery_beat.models import IntervalSchedule, PeriodicTask  # noqa: E402 - needs Django to be set up


def make(tasks: list[str]) -> None:
    every_second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    for task in tasks:
        entry = {"interval": every_second, "args": "[2]", "kwargs": '{"y": 3}', "one_off": True}
        PeriodicTask.objects.create(name=f"once {task}", task=task, **entry)


def show(tasks: list[str]) -> None:
    for task in tasks:
        entry = PeriodicTask.objects.get(task=task)
        print(json.dumps({"enabled": entry.enabled, "runs": entry.total_run_count}))


if __name__ == "__main__":
    {"make": make, "show": show}[sys.argv[1]](sys.argv[2:])
