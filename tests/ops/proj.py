"""An app for the doctor: its settings and what is wrong with its tasks come from the environment."""

from __future__ import annotations

import json
import os

from celery import Celery

from celery_rlock import LockedTask

app = Celery("proj", set_as_current=False)
app.conf.update(json.loads(os.environ["RLOCK_TEST_CONF"]))
#: Options of the task.
TASK = json.loads(os.environ.get("RLOCK_TEST_TASK", "{}"))


@app.task(base=LockedTask, name="locked", shared=False, **TASK)
def locked(account_id=0):
    return account_id
