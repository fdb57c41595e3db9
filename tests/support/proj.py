"""The smallest Celery app, for the self-test; broker and backend come from the environment."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("proj", set_as_current=False)


@app.task
def pid() -> int:
    """The pool process that ran it."""
    return os.getpid()
