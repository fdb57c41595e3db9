"""Tasks whose newest call replaces the older ones, and what their code makes of the interruption."""

from __future__ import annotations

import os
import time

from celery_rlock import LockedTask, TaskReplaced, current_lock
from celery_rlock.running import replaced
from celery_rlock.signals import lock_replaced
from tests.support.app import busy_for, is_told, record
from tests.worker.proj.app import app, task

#: Users get ten seconds; a test has no patience for that.
replaced.TIME_TO_END = 1.0

_LONG = 60.0


@lock_replaced.connect
def note_replaced(sender, error, request, held, **_):
    if request is not None and request.args:
        record(request.args[0], "replaced", id=request.id, by=error.by, held=held)


def turned(this, name):
    try:
        busy_for(_LONG)
    except TaskReplaced as error:
        record(name, "interrupted", id=this.request.id, by=error.by)
        raise ValueError("cleaned up") from error


def swallowed(this, name):
    try:
        busy_for(_LONG)
    except Exception:
        record(name, "interrupted", id=this.request.id)


def retried(this, name):
    try:
        busy_for(_LONG)
    except Exception as error:
        raise this.retry(exc=error, countdown=0) from error


def stubborn(this, name):
    """Go on until the test tells it to end."""
    end = time.monotonic() + _LONG
    while time.monotonic() < end and not is_told(name):
        try:
            busy_for(0.1)
        except Exception:
            record(name, "interrupted", id=this.request.id)


BEHAVIOUR = {
    "short": lambda *_: busy_for(0.05),
    "long": lambda *_: busy_for(_LONG),
    "blocked": lambda *_: time.sleep(_LONG),
    "turned": turned,
    "swallowed": swallowed,
    "retried": retried,
    "stubborn": stubborn,
}


def behave(this, name, how):
    """Run for up to a minute, or end soon: `how` says what the code does when it is interrupted."""
    record(name, "start", id=this.request.id, token=current_lock().token, pid=os.getpid())
    try:
        BEHAVIOUR[how](this, name)
    finally:
        record(name, "end", id=this.request.id)
    return how


@task(lock_key="{name}", lock_busy="replace")
def restarting(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_busy="replace", acks_late=True)
def restarting_late(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_busy="replace", acks_late=True, reject_on_worker_lost=True)
def restarting_lost(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_busy="replace", autoretry_for=(Exception,), default_retry_delay=0)
def restarting_auto(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_busy="replace")
def restarting_another(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_busy=lambda *_: "replace")
def restarting_by_choice(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key=["{one}", "{other}"], lock_busy="replace")
def restarting_on_both(self, name, one, other, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_ttl=3)
def restarted_by_one_call(self, name, how="short"):
    return behave(self, name, how)


@task(lock_key="{name}", lock_busy="replace")
def calling_itself(self, name, how="outer"):
    record(name, "start", id=self.request.id)
    if how == "outer":
        inner = self(name, "inner"), calling_itself(name, "inner"), self.apply((name, "inner")).result
        return [*inner]
    return how


@app.task(base=LockedTask, lock_key="{name}", lock_busy=lambda *_: "replace", lock_limit=2)
def restarting_one_of_two(name, seconds=0.0):
    record(name, "start")
    busy_for(seconds)


@app.task
def after(value, name):
    record(name, "after", value=value)


@app.task
def on_error(*_, name):
    record(name, "errback")
