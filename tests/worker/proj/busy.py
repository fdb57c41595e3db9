"""Tasks that differ in what they do when their lock is busy."""

from __future__ import annotations

from tests.support.app import record
from tests.worker.proj.app import Recorded, app, task


@task(lock_key="{name}", lock_busy="skip")
def skipping(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_busy="skip", ignore_result=True)
def skipping_silently(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_busy="fail")
def failing(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_busy="reject")
def rejecting(self, name):
    return self.span(name)


def choose(this, error):
    record("chosen", "chosen", task=this.name, key=error.key, holder=error.holder)
    return "skip"


@task(lock_key="{name}", lock_busy=choose)
def choosing(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_busy=lambda *_: "retry")
def deciding(self, name):
    return self.span(name)


class Prepared(Recorded):
    """Records each call of `before_start`."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        record(args[0], "before_start", id=task_id)


# A callable is asked at the end of each backoff, so the task is delivered again and again.
@app.task(base=Prepared, bind=True, shared=False, lock_key="{name}", lock_busy=lambda *_: "retry")
def preparing(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_busy=lambda *_: "no such policy")
def choosing_badly(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_max_attempts=3)
def impatient(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_wait=20, lock_busy="fail")
def waits_in_place(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_wait=1)
def waiting_then_again(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_wait=1, acks_late=True)
def waiting_then_again_late(self, name):
    return self.span(name)


@task(lock_key="{name}", max_retries=1)
def retrying(self, name, seconds=0.0):
    """Fails once by itself, so that its own retry count can be seen."""
    fields = self.span(name, seconds)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return {**fields, "headers": self.request.headers}


@task(lock_key="{name}", autoretry_for=(ZeroDivisionError,), retry_backoff=False, default_retry_delay=0)
def autoretrying(self, name):
    fields = self.span(name)
    if self.request.retries < 2:
        raise ZeroDivisionError
    return fields
