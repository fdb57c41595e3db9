"""Apps to be looked at, and looking at them."""

from __future__ import annotations

import json
import subprocess
import sys

from celery import Celery

from celery_rlock import LockedTask
from celery_rlock.checks.catalogue import CHECKS
from celery_rlock.checks.setup import Setup
from tests.support.daemon import ROOT

#: A broker elsewhere and a result backend, neither of which is asked; the locks are where the broker is.
ELSEWHERE = {"broker_url": "redis://broker.test/0", "result_backend": "redis://broker.test/1"}


def make_app(*, base=LockedTask, conf=ELSEWHERE, name="locked", **options):
    """An app with one locked task of these options."""
    app = Celery("patient", set_as_current=False)
    app.conf.update(conf)
    add_task(app, name, base=base, **options)
    return app


def add_task(app, name, *, base=LockedTask, **options):
    def run(account_id=0):
        return account_id

    return app.task(run, base=base, name=name, shared=False, **options)


def look(check, app, *, worker=None):
    """What the check finds. Whatever is not in order says what to do."""
    found = next(one for one in CHECKS if one.name == check).findings(Setup(app, worker, timeout=2))
    assert all(bool(finding.todo) == (finding.level in {"warn", "error"}) for finding in found)
    return found


def only(found, level):
    """The only finding, which is of this level: what, and what to do."""
    assert [finding.level for finding in found] == [level], found
    return found[0].what, found[0].todo


def is_fine(check, app):
    return {finding.level for finding in look(check, app)} == {"ok"}


def run_doctor(*args, conf, env=None, before=(), app="tests.ops.patient"):
    """The command as users give it; what it printed is piped."""
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        **(env or {}),
        "RLOCK_TEST_CONF": json.dumps(conf),
    }
    command = [sys.executable, *before, "-m", "celery", "-A", app, "rlock", "doctor", *args]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, encoding="utf-8"
    )
