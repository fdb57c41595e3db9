"""An app with a locked task whose own Request knows nothing of the lock."""

from __future__ import annotations

import os

from celery import Celery
from celery.worker.request import Request

from celery_rlock import LockedTask

app = Celery("bypassing", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
)


class OwnRequest(Request):
    """As users write it who follow Celery's documentation."""


class Own(LockedTask):
    abstract = True
    Request = OwnRequest


@app.task(base=Own, shared=False)
def bypassing():
    return "ran"
