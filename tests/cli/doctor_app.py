"""The Celery app that tests of the doctor examine, and the ways to examine an app.

As a process, the app takes its settings from RLOCK_TEST_CONF, its task's options from RLOCK_TEST_TASK (both
JSON) and its task's base from RLOCK_TEST_BASE.
"""

from __future__ import annotations

import json
import os

from celery import Celery
from celery.worker.request import Request

from celery_rlock import LockedTask
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.doctor.setup import Setup
from tests.cli.run_commands import piped

APP = "tests.cli.doctor_app:app"

#: A broker and a result backend on another host, which no check connects to; the locks are there too.
ELSEWHERE = {"broker_url": "redis://broker.test/0", "result_backend": "redis://broker.test/1"}


class OwnPublishing(LockedTask):
    """Overrides `apply_async` without super(), and so takes no lock when it is published."""

    abstract = True
    lock_from = "publish"

    def apply_async(self, args=None, kwargs=None, **options):
        return self.app.send_task(self.name, args, kwargs, **options)


class OwnRequest(LockedTask):
    """Has a Request that is not a LockedRequestMixin."""

    abstract = True
    Request = Request


#: What RLOCK_TEST_BASE may be. With "forgotten" no task of the app is a LockedTask.
BASES = {"publishing": OwnPublishing, "request": OwnRequest, "forgotten": None}


def make_app(*, base=LockedTask, conf=ELSEWHERE, name="locked", **options):
    """An app with one locked task of these options."""
    app = Celery("examined", set_as_current=False)
    app.conf.update(conf)
    add_task(app, name, base=base, **options)
    return app


def add_task(app, name, *, base=LockedTask, **options):
    def run(account_id=0):
        return account_id

    return app.task(run, base=base, name=name, shared=False, **options)


def check(name, app, *, worker=None):
    """What the check of this name finds. Every warning and error has a `todo`."""
    found = next(one for one in CHECKS if one.name == name).findings(Setup(app, worker, timeout=2))
    assert all(bool(finding.todo) == (finding.level in {"warn", "error"}) for finding in found)
    return found


def only(found, level):
    """`what` and `todo` of the single finding, which has this level."""
    assert [finding.level for finding in found] == [level], found
    return found[0].what, found[0].todo


def is_fine(name, app):
    return {finding.level for finding in check(name, app)} == {"ok"}


def run_doctor(*args, conf, env=None):
    """The command as users run it, with its output in pipes."""
    return piped("", "doctor", *args, app=APP, env=doctor_env(conf, **(env or {})), encoding="utf-8")


def doctor_env(conf, **more):
    """The environment of the app as a process."""
    return {"PYTHONIOENCODING": "utf-8", "RLOCK_TEST_CONF": json.dumps(conf), **more}


app = make_app(
    base=BASES.get(os.environ.get("RLOCK_TEST_BASE"), LockedTask),
    conf=json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")),
    **json.loads(os.environ.get("RLOCK_TEST_TASK", "{}")),
)
