"""Counts in Redis when tasks are published, run and skipped. Signals do that, so the apps need no change.

`celery -A examples.periodic.counting` runs the app of the module that the variable APP names.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import redis
from celery.signals import after_task_publish, beat_init, task_prerun

from celery_rlock import LockedTask, TaskLock
from celery_rlock.signals import lock_acquired, lock_busy

app = importlib.import_module(os.environ["APP"]).app


def _note(what: str, task: str, at: float) -> None:
    redis.Redis.from_url(app.conf.broker_url).rpush(f"{what}:{task}", at)


@beat_init.connect
def _count_only_what_beat_publishes(**_: Any) -> None:
    after_task_publish.connect(_count_published, weak=False)


def _count_published(sender: str, **_: Any) -> None:
    _note("published", sender, time.time())


@task_prerun.connect
def _count_plain_run(task: Any, **_: Any) -> None:
    if not isinstance(task, LockedTask):
        _note("run", task.name, time.time())


@lock_acquired.connect
def _count_locked_run(sender: LockedTask, lock: TaskLock, **_: Any) -> None:
    _note("run", sender.name, lock.token / 1e6)  # a token is the server's time of acquiring, in microseconds


@lock_busy.connect
def _count_skipped(sender: LockedTask, action: str, **_: Any) -> None:
    _note(action, sender.name, time.time())  # here the action is always "skip"
