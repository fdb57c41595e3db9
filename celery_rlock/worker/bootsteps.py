"""What a locked task adds to its worker, without any set-up by the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import celery_rlock.worker.control  # noqa: F401 - registers what `celery inspect` and `celery control` can ask
from celery_rlock.worker.check import CheckSettings
from celery_rlock.worker.connection import AnnounceCopies
from celery_rlock.worker.reaper import Reaper
from celery_rlock.worker.waking import WakeWaiters

if TYPE_CHECKING:
    from celery import Celery


def install(app: Celery) -> None:
    app.steps["worker"].update((CheckSettings, Reaper))
    app.steps["consumer"].update((AnnounceCopies, WakeWaiters))
