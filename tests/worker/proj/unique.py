"""Tasks that are unique from publish on, that rest after their run, or that take options of a call."""

from __future__ import annotations

import os

from tests.support.app import busy_for, record
from tests.worker.proj.app import Recorded, app, lock_of, locks, task


@task(lock_key="{name}", lock_from="publish")
def once(self, name, seconds=0.0, retry=None, until_told=False):
    """With `until_told` it runs until the test calls `tell(name)`."""
    fields = self.span(name, seconds, until_told=until_told)
    if retry is not None and self.request.retries < 2:
        raise self.retry(countdown=retry)
    return fields


@task(lock_key="{name}", lock_from="publish")
def once_elsewhere(self, name, other):
    """Retries with another name, and so on another key."""
    fields = self.span(name)
    if self.request.retries == 0:
        raise self.retry(args=(other, other), countdown=2)
    return fields


@task(lock_key=["{name}", "{other}"], lock_from="publish")
def once_partly_elsewhere(self, name, other):
    """Retries with another second key."""
    fields = self.span(name)
    if self.request.retries == 0:
        raise self.retry(kwargs={"name": name, "other": f"{other}-2"}, args=(), countdown=2)
    return fields


@task(lock_key="{name}", lock_from="publish", lock_until="start")
def once_in_queue(self, name, until_told=False):
    return self.span(name, until_told=until_told)


@task(lock_key="{name}", lock_from="publish", lock_duplicate="raise")
def once_or_raise(self, name, seconds=0.0, until_told=False):
    return self.span(name, seconds, until_told=until_told)


@task(lock_key="{name}", lock_from="publish", acks_late=True)
def once_late(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_from="publish", lock_busy="skip")
def once_or_skip(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_from="publish")
def once_of(self, name, value):
    return self.span(name)


@task(lock_key="{name}", lock_from="publish", expires=100)
def once_in_time(self, name):
    return self.span(name)


class Unprepared(Recorded):
    """Fails before each run."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        raise RuntimeError("not prepared")


@app.task(base=Unprepared, bind=True, shared=False, lock_key="{name}", lock_from="publish")
def never_prepared(self, name):
    return self.span(name)


@app.task(shared=False)
def publishes(name):
    """Publishes twice inside a run; returns the ids."""
    return [once.delay(name, 0.5).id for _ in range(2)]


@task(lock_key="{name}", lock_hold_at_least=2, lock_busy="skip")
def at_least(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_hold_at_least=60)
def rests_long(self, name, seconds=0.0):
    record(name, "start", pid=os.getpid())
    busy_for(seconds)


@task(lock_key="{name}", lock_hold_at_least=1.5, lock_ttl=1)
def rests(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_busy="skip", lock_hold_at_least=0.7)
def tick(self, name):
    return self.span(name)


@task(lock_key="{name}", max_retries=3)
def tells(self, name, retry=0):
    """Which lock it runs under, after as many retries."""
    if self.request.retries < retry:
        raise self.retry(countdown=0)
    with locks() as client:
        lease = client.pttl(lock_of(self.lock.keys[0])) / 1000
    return {"keys": list(self.lock.keys), "lease": lease, "retries": self.request.retries}
