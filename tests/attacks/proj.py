"""The app of the real workers under attack."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from celery import Celery, signals
from celery.utils.log import get_task_logger

from celery_rlock import LockedTask
from tests.support.clients import bare_client

URL = os.environ["RLOCK_ATTACKED"]

logger = get_task_logger(__name__)
app = Celery("attacked", broker=URL, backend=URL)
app.conf.update(rlock_url=URL, broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)


@app.task(base=LockedTask, bind=True, lock_key="unique", lock_from="publish", lock_ttl=120, max_retries=1)
def unique(self):
    """Runs, finds 10,000 waiters put in line, and is retried much later."""
    with bare_client(URL) as client:
        if client.exists("aside"):
            client.rename("aside", "rlock:{unique}:waiters")
        client.set("unique:ran", 1)
    raise self.retry(countdown=3600)


@signals.task_retry.connect
def note_retry(sender=None, **_):
    if sender.name == unique.name:
        with bare_client(URL) as client:
            client.set("unique:retried", 1)


@app.task(base=LockedTask, bind=True, lock_key="{key}", lock_ttl=120, lock_wait=0.02, lock_busy="fail")
def limited(self, key, seconds):
    """Runs into its soft time limit at any moment. A lock of the kernel shows two runs at once."""
    with (Path(os.environ["RLOCK_ATTACKED_FILES"]) / key).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self.lock.held:
                logger.error("two runs at once under %s", key)  # noqa: TRY400 - no traceback needed
        time.sleep(seconds)


@app.task
def pid():
    time.sleep(0.05)
    return os.getpid()
