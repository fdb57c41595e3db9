"""The app of the integration tests: what users would write, and records of what ran when.

Broker and backend come from the environment; RLOCK_TEST_CONF adds settings as JSON.
"""

from __future__ import annotations

import json
import os
import time

from celery import Celery
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_rlock import LockedTask, RLock, current_lock, settings
from tests.support.clients import bare_client

app = Celery("proj", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("RLOCK_TEST_BROKER"),
    result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    rlock_backoff=0.05,
    rlock_backoff_max=0.3,
)
app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))


def store():
    """The tests' own view of the server, past every proxy."""
    return bare_client(os.environ["RLOCK_TEST_STORE"])


def record(name, **fields):
    with store() as client:
        client.rpush(f"record:{name}", json.dumps({"at": time.time(), **fields}))


def busy_for(seconds):
    """Work that an interrupt can reach at any moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


class Spanned(LockedTask):
    """Records when each run of the body began and ended."""

    abstract = True

    def span(self, name, seconds=0.0):
        lock = current_lock()
        fields = {"id": self.request.id, "worker": self.request.hostname, "retries": self.request.retries}
        fields |= {"token": lock.token, "owner": lock.owner, "held": lock.held} if lock else {}
        record(name, event="start", **fields)
        busy_for(seconds)
        record(name, event="end", **fields)
        return fields


def task(**options):
    return app.task(base=Spanned, bind=True, shared=False, **options)


@task(lock_key="{name}")
def work(self, name, seconds=0.1):
    return self.span(name, seconds)


@task()
def of_anything(self, name, anything=slice(1)):
    return self.span(name)


@task(lock_key="{name}", lock_ttl=1)
def short_lease(self, name, seconds=0.1):
    return self.span(name, seconds)


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
    record("chosen", task=this.name, key=error.key, holder=error.holder)
    return "skip"


@task(lock_key="{name}", lock_busy=choose)
def choosing(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_busy=lambda *_: "retry")
def deciding(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_busy=lambda *_: "never heard of")
def choosing_badly(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_max_attempts=3)
def impatient(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_wait=20, lock_busy="fail")
def waiting(self, name):
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


@task(lock_key="{name}", acks_late=True)
def late(self, name, seconds=0.1):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_unavailable="fail")
def needing(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_unavailable="run")
def carefree(self, name):
    return {**self.span(name), "held": self.lock.held, "token": self.lock.token}


@task(lock_key="{name}", lock_until="postrun")
def until_postrun(self, name):
    return self.span(name)


@task(lock_key="{name}", soft_time_limit=1)
def softly_limited(self, name):
    self.span(name, 30)


@task(lock_key="{name}")
def ending(self, name, how):
    """Ends in every way there is."""
    self.span(name)
    if how == "success":
        return how
    if how == "retry" and self.request.retries == 0:
        raise self.retry(countdown=0)
    if how == "replace":
        raise self.replace(other.si(name))
    if how == "soft limit":
        raise SoftTimeLimitExceeded
    raise {
        "failure": ValueError(how),
        "Ignore": Ignore(how),
        "Reject": Reject(how, requeue=False),
        "SystemExit": SystemExit(1),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "retry": ValueError(how),
    }[how]


@task(lock_key="{name}")
def other(self, name):
    return self.span(name)


@task(lock_key="{name}")
def nesting(self, name, how, deep=0):
    """Enters its own lock again, in every way there is."""
    outside = (self.lock.token, self.lock.depth)
    inside = None
    if how == "self" and deep == 0:
        return self(name, how, deep=1)
    if how == "self":
        return [1, self.lock.depth, True]
    if how == "direct":
        inside = other(name)["token"]
    if how == "apply":
        inside = other.apply((name,)).get(disable_sync_subtasks=False)["token"]
    if how == "RLock":
        with RLock(name, client=settings.server(app).client) as lock:
            inside = lock.token
            assert lock.depth == outside[1] + 1
    return [*outside, inside == outside[0] and self.lock.depth == outside[1] and self.lock.held]


@task(lock_key="{name}")
def leaking(self, name):
    """Acquires a lock and never releases it."""
    RLock(f"{name}-inner", client=settings.server(app).client, ttl=60).acquire()


@task(lock_key="{name}", lock_ttl=1, lock_lost="abort")
def aborting(self, name, how):
    """Loses its lock at once, and notices only if it is interrupted."""
    settings.server(app).client.delete(settings.server(app).name(name).lock)
    record(name, event="start")
    if how == "sleep":
        time.sleep(30)
    else:
        busy_for(30)
    record(name, event="end")


def note_loss(this, error):
    record("losses", task=this.name, key=error.key, owner=error.owner)


@task(lock_key="{name}", lock_ttl=1, lock_lost=note_loss)
def losing(self, name):
    settings.server(app).client.delete(settings.server(app).name(name).lock)
    busy_for(1)
    return {"lost": self.lock.lost, "held": self.lock.held}


@task(lock_key="{name}", lock_ttl=1, lock_max_hold=1)
def held_too_long(self, name):
    before = self.lock.held
    busy_for(4)
    return {"before": before, "lost": self.lock.lost}


@app.task(shared=False)
def add_up(numbers):
    return len(numbers)


@app.task(shared=False)
def note_error(request, exc, traceback):
    record("errbacks", id=request.id, error=str(exc))


@task(lock_key="{name}", lock_wait=1)
def waiting_then_again(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_wait=1, acks_late=True)
def waiting_then_again_late(self, name):
    return self.span(name)


@task(lock_key=["account:{source}", "account:{target}"])
def transfer(self, source, target, seconds=0.0):
    for account in sorted({source, target}):
        record(account, event="start", id=self.request.id, tokens=self.lock.tokens)
    busy_for(seconds)
    for account in sorted({source, target}):
        record(account, event="end", id=self.request.id)
    return {"keys": list(self.lock.keys), "tokens": self.lock.tokens, "held": self.lock.held}


@task(lock_key="{name}", lock_hold_at_least=2, lock_busy="skip")
def at_least(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_from="publish")
def once(self, name, seconds=0.0, retry=None):
    fields = self.span(name, seconds)
    if retry is not None and self.request.retries < 2:
        raise self.retry(countdown=retry)
    return fields


@task(lock_key="{name}", lock_from="publish", lock_until="start")
def once_in_queue(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_from="publish", lock_duplicate="raise")
def once_or_raise(self, name, seconds=0.0):
    return self.span(name, seconds)
