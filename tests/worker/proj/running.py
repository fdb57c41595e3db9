"""Tasks that run, end, enter their lock again and lose it, each in many ways."""

from __future__ import annotations

import time

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_rlock import RLock, current_lock
from tests.support.app import busy_for, record
from tests.worker.proj.app import Recorded, app, lose, task


@task(lock_key="{name}")
def work(self, name, seconds=0.1, until_told=False):
    return self.span(name, seconds, until_told=until_told)


@task(lock_key="{name}")
def other(self, name):
    return self.span(name)


@task()
def of_anything(self, name, anything=slice(1)):
    """Its default key would need a stable form of a slice."""
    return self.span(name)


@task(lock_key="{name}", lock_ttl=1)
def short_lease(self, name, seconds=0.1):
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


class EntersAgain(Recorded):
    """Enters the lock of its run again in a handler: directly, and by another task."""

    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        name = args[0]
        entered = RLock(name).acquire(blocking=False)
        if entered:
            RLock(name).release()
        record(name, "handler", entered=entered, other=entered and other(name)["owner"])


@app.task(base=EntersAgain, bind=True, shared=False, lock_key="{name}", lock_until="postrun")
def until_postrun_with_handler(self, name):
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
        with RLock(name) as lock:
            inside = lock.token
            assert lock.depth == outside[1] + 1
    return [*outside, inside == outside[0] and self.lock.depth == outside[1] and self.lock.held]


@task(lock_key="{name}")
def leaking(self, name):
    """Acquires another lock and never releases it."""
    RLock(f"{name}-inner", ttl=60).acquire()


@task(lock_key="{name}", lock_ttl=1, lock_lost="abort")
def aborting(self, name, how):
    """Loses its lock at once; only an interrupt ends the run."""
    lose(name)
    record(name, "start")
    if how == "sleep":
        time.sleep(30)
    else:
        busy_for(30)
    record(name, "end")


class PublishedSlowly(Recorded):
    """Its retry takes longer to publish than a renewal needs to notice that the lock is lost."""

    abstract = True

    def apply_async(self, args=None, kwargs=None, **options):
        if current_lock() is not None:
            lose(self.request.args[0])
            busy_for(1.5)
        return super().apply_async(args, kwargs, **options)


@app.task(base=PublishedSlowly, bind=True, shared=False, lock_key="{name}", lock_ttl=1, lock_lost="abort")
def losing_while_it_retries(self, name):
    if not self.request.retries:
        raise self.retry(countdown=0)
    record(name, "end")


def note_loss(this, error):
    record("losses", "lost", task=this.name, key=error.key, owner=error.owner)


@task(lock_key="{name}", lock_ttl=1, lock_lost=note_loss)
def losing(self, name):
    lose(name)
    busy_for(1)
    return {"lost": self.lock.lost, "held": self.lock.held}


@task(lock_key="{name}", lock_ttl=1, lock_max_hold=1)
def held_too_long(self, name):
    before = self.lock.held
    busy_for(2.5)
    return {"before": before, "lost": self.lock.lost}


@app.task(shared=False)
def add_up(numbers):
    """How many they are."""
    return len(numbers)


@app.task(shared=False)
def note_error(request, exc, traceback):
    record("errbacks", "called", id=request.id, error=str(exc))
