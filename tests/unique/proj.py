"""The integration tests' app, with tasks that are unique, rest, or lock several keys."""

from __future__ import annotations

import os
from functools import cache

from celery_rlock import settings
from tests.integration.proj import (
    Spanned,
    add_up,
    app,
    at_least,
    busy_for,
    note_error,
    once,
    once_in_queue,
    once_or_raise,
    other,
    record,
    store,
    task,
    transfer,
    work,
)

__all__ = [
    "add_up",
    "app",
    "at_least",
    "note_error",
    "once",
    "once_in_queue",
    "once_or_raise",
    "other",
    "store",
    "transfer",
    "work",
]


@task(lock_key="{name}", lock_from="publish", acks_late=True)
def once_late(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_from="publish", lock_unavailable="fail")
def once_for_sure(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_from="publish", lock_busy="skip")
def once_or_skip(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_from="publish")
def once_of(self, name, value):
    return self.span(name)


@task(lock_key="{name}", lock_from="publish", expires=100)
def once_in_time(self, name):
    return self.span(name)


class Unprepared(Spanned):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        raise RuntimeError("not prepared")


@app.task(base=Unprepared, bind=True, shared=False, lock_key="{name}", lock_from="publish")
def never_prepared(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_from="publish")
def once_killed(self, name, seconds=60):
    record(name, event="start", pid=os.getpid())
    busy_for(seconds)


@task(lock_key="{name}", lock_hold_at_least=60)
def rests_long(self, name, seconds=0.0):
    record(name, event="start", pid=os.getpid(), lease=self.lock.held)
    busy_for(seconds)


@task(lock_key="{name}", lock_hold_at_least=3, lock_ttl=1)
def rests(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_busy="skip", lock_hold_at_least=1.4)
def tick(self, name):
    return self.span(name)


BOTH = ["account:{source}", lambda source, target, **_: f"account:{target}"]


@task(lock_key=BOTH, lock_ttl=1)
def transfer_renewed(self, source, target, seconds=3):
    before = self.lock.tokens
    busy_for(seconds)
    return {"held": self.lock.held, "lost": self.lock.lost, "same": self.lock.tokens == before}


@task(lock_key=BOTH, lock_ttl=1)
def transfer_losing(self, source, target, loses):
    client = settings.server(app).client
    client.delete(settings.server(app).name(f"account:{loses}").lock)
    busy_for(1.5)
    return {"held": self.lock.held, "lost": self.lock.lost}


@task(lock_key=BOTH, acks_late=True)
def transfer_late(self, source, target, seconds=0.0):
    record(source, event="start", id=self.request.id, pid=os.getpid())
    busy_for(seconds)
    record(source, event="end", id=self.request.id)
    return self.request.id


@task(lock_key=BOTH, lock_wait=30, lock_busy="fail")
def transfer_waiting(self, source, target):
    return {"tokens": self.lock.tokens}


@task(lock_key=lambda accounts: [f"account:{account}" for account in accounts])
def transfer_all(self, accounts):
    return {"keys": list(self.lock.keys), "tokens": self.lock.tokens}


@cache
def counters():
    return store()


@task(lock_key=["account:{source}", "account:{target}"], ignore_result=True)
def move(self, source, target, name):
    """The smallest transfer, and the server's word on whether it is alone with each account."""
    for account in (source, target):
        if counters().incr(f"inside:{name}:{account}") != 1:
            counters().rpush(f"overlaps:{name}", account)
    for account in (source, target):
        counters().decr(f"inside:{name}:{account}")
    counters().hincrby(f"runs:{name}", self.request.id, 1)


@task(lock_key="{name}", max_retries=3)
def tells(self, name, retry=0):
    """Which lock it runs under, after as many retries."""
    if self.request.retries < retry:
        raise self.retry(countdown=0)
    client, lock = settings.server(app).client, settings.server(app).name(self.lock.keys[0]).lock
    return {"keys": list(self.lock.keys), "lease": client.pttl(lock) / 1000, "retries": self.request.retries}


@app.task(shared=False)
def publishes(name):
    """Two calls inside a run."""
    return [once.delay(name, 0.5).id for _ in range(2)]
