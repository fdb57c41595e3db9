"""An app for the doctor: its settings, and the options of its task, come from the environment."""

from __future__ import annotations

import json
import os

from celery import Celery
from celery.worker.request import Request

from celery_rlock import LockedTask

app = Celery("patient", set_as_current=False)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))


class OwnCall(LockedTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


class OwnRequest(LockedTask):
    abstract = True
    Request = Request


BASE = {"call": OwnCall, "request": OwnRequest}.get(os.environ.get("RLOCK_TEST_BASE"), LockedTask)


@app.task(base=BASE, name="locked", shared=False, **json.loads(os.environ.get("RLOCK_TEST_TASK", "{}")))
def locked(account_id=0):
    return account_id
