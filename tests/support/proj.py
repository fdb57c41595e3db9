"""The smallest test project: the tests of the test support run its worker."""

from __future__ import annotations

import os

from tests.support.app import make_app

app = make_app("proj")


@app.task
def pid() -> int:
    """The pool process that ran it."""
    return os.getpid()
