"""The app of the fleets: tasks that say where and when they ran, in a store that no fault touches.

All settings come as JSON in RLOCK_TEST_CONF, the store's URL and a folder for flocks beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from celery import Celery

from celery_rlock import LockedTask
from tests.support.clients import bare_client

app = Celery("proj", set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=1)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))


def record(event, **fields):
    with bare_client(os.environ["RLOCK_TEST_STORE"]) as store:
        store.rpush("records", json.dumps({"at": time.time(), "event": event, **fields}))


def is_alone(file):
    """The kernel's word on overlaps."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@app.task(base=LockedTask, bind=True, shared=False, lock_key="{name}", acks_late=True)
def work(self, name, seconds):
    """Goes on where it should not be alone: what follows from that is to be seen too."""
    fields = {"id": self.request.id, "name": name, "token": self.lock.token}
    with (Path(os.environ["RLOCK_TEST_FILES"]) / name).open("w") as file:
        if not is_alone(file):
            record("overlap", **fields)
        record("start", **fields)
        time.sleep(seconds)
        record("end", **fields)
