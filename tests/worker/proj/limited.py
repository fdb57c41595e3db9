"""Tasks of which several may run under one key."""

from __future__ import annotations

import os

from tests.support.app import busy_for, record, wait_until_told
from tests.worker.proj.app import Recorded, task

LIMIT, SMALL, LARGE = 2, 1, 3

#: "20 per minute", thirty times as fast.
RATE, PERIOD = 20, 2.0
MINUTE = {"lock_backoff": 60, "lock_backoff_max": 60}


def note(this, name, event):
    record(name, event, id=this.request.id, pid=os.getpid(), slot=this.lock.slot, token=this.lock.token)


def in_its_place(this: Recorded, name, seconds=0.0, until=None):
    note(this, name, "start")
    busy_for(seconds)
    if until:
        wait_until_told(until)
    note(this, name, "end")
    return {"slot": this.lock.slot, "token": this.lock.token}


@task(lock_key="{name}", lock_limit=LIMIT, **MINUTE)
def limited(self, name, seconds=0.0, until=None):
    return in_its_place(self, name, seconds, until)


@task(lock_key="{name}", lock_limit=LARGE, lock_ttl=2, acks_late=True, reject_on_worker_lost=True)
def limited_late(self, name, seconds=0.0, until=None):
    return in_its_place(self, name, seconds, until)


@task(lock_key="{name}", lock_limit=lambda plan, **_: LIMIT if plan == "pro" else SMALL, **MINUTE)
def limited_by_plan(self, name, plan, until=None):
    return in_its_place(self, name, until=until)


@task(lock_key=["whole:{name}", "places:{name}"], lock_limit=[SMALL, LARGE])
def limited_keys(self, name):
    return self.lock.slots


@task(lock_key=["a:{name}", "b:{name}"], lock_limit=[LIMIT, SMALL], lock_hold_at_least=60, lock_busy="skip")
def rated_keys(self, name):
    return self.lock.slots


@task(lock_key="{name}", lock_limit=lambda name: None)
def limited_by_nothing(self, name):
    raise AssertionError


@task(lock_key="{name}", lock_limit=RATE, lock_hold_at_least=PERIOD, lock_ttl=1)
def rated(self, name, seconds=0.0):
    return in_its_place(self, name, seconds)


@task(lock_key="{name}", lock_limit=LIMIT)
def limited_and_nested(self, name):
    """Calls another task of the same key, which enters this run's place again."""
    inner = limited(name)
    return {"outer": self.lock.slot, "inner": inner["slot"], "depth": self.lock.depth}
