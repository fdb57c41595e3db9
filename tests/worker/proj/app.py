"""The app of the worker tests, and the base class of its tasks."""

from __future__ import annotations

import os

from celery_rlock import LockedTask, current_lock
from tests.support.app import busy_for, make_app, record, wait_until_told
from tests.support.clients import bare_client

app = make_app("proj", rlock_backoff=0.05, rlock_backoff_max=0.3)


class Recorded(LockedTask):
    """Records when each run began and ended, and under which lock."""

    abstract = True

    def span(self, name, seconds=0.0, *, until_told=False):
        """Take `seconds`, or wait for `tell(name)`, between two records; return what both of them say."""
        lock = current_lock()
        fields = {"id": self.request.id, "worker": self.request.hostname, "retries": self.request.retries}
        fields |= {"token": lock.token, "owner": lock.owner, "held": lock.held} if lock else {}
        record(name, "start", pid=os.getpid(), **fields)
        busy_for(seconds)
        if until_told:
            wait_until_told(name)
        record(name, "end", **fields)
        return fields


def task(**options):
    return app.task(base=Recorded, bind=True, shared=False, **options)


def locks():
    """A client of the lock server, as an operator has it."""
    return bare_client(app.conf.rlock_url)


def lock_of(key):
    """The name of a key's lock in Redis."""
    return f"rlock:{{{key}}}"


def lose(key):
    """Delete the lock behind the back of its owner."""
    with locks() as client:
        assert client.delete(lock_of(key)) == 1
