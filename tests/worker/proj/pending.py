"""Tasks with calls that are queued behind the running one."""

from __future__ import annotations

from tests.support.app import busy_for, record
from tests.worker.proj.app import task

PUBLISHED = {"lock_from": "publish", "lock_ttl": 5}


@task(lock_key="{name}", lock_pending=1, **PUBLISHED)
def rebuild(self, name, seconds=0.0, retry=None, until_told=False):
    """With `until_told` it runs until the test calls `tell(name)`."""
    fields = self.span(name, seconds, until_told=until_told)
    if retry is not None and self.request.retries == 0:
        raise self.retry(countdown=retry)
    return fields


@task(lock_key="{name}", lock_pending=1, acks_late=True, reject_on_worker_lost=True, **PUBLISHED)
def rebuild_late(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", lock_pending=2, lock_duplicate="raise", **PUBLISHED)
def rebuild_twice(self, name, until_told=False):
    return self.span(name, until_told=until_told)


@task(lock_key=["{name}", "{other}"], lock_pending=1, **PUBLISHED)
def rebuild_both(self, name, other):
    return self.span(name)


@task(lock_key="{name}", lock_pending=1, lock_busy=lambda task, busy: "fail", **PUBLISHED)
def rebuild_or_fail(self, name):
    return self.span(name)


@task(lock_key="{name}", lock_pending=1, **PUBLISHED)
def rebuild_itself(self, name, times):
    """Makes the next call inside the run."""
    record(name, "published", next=rebuild_itself.delay(name, times - 1).id if times else None)
    return self.span(name)


@task(lock_key="{name}", lock_pending=1, lock_duplicate="replace", **PUBLISHED)
def save(self, name, version, seconds=0.0, until_told=False, retry=None):
    record(name, "version", version=version)
    fields = self.span(name, seconds, until_told=until_told)
    if retry is not None and self.request.retries == 0:
        raise self.retry(countdown=retry)
    return {**fields, "version": version}


@task(lock_key="{name}", lock_pending=1, lock_duplicate="replace", acks_late=True, **PUBLISHED)
def save_late(self, name, version, seconds=0.0):
    record(name, "version", version=version)
    busy_for(seconds)


@task(lock_key="{name}", lock_duplicate="replace", **PUBLISHED)
def save_alone(self, name, version, until_told=False):
    """Nothing is queued behind its run."""
    record(name, "version", version=version)
    return self.span(name, until_told=until_told)


@task(lock_key="{name}", lock_duplicate="replace", lock_until="start", **PUBLISHED)
def save_beside(self, name, version, until_told=False):
    """Its runs need no lock."""
    record(name, "version", version=version)
    return self.span(name, until_told=until_told)


@task(lock_key=["{name}", "{other}"], lock_pending=1, lock_duplicate="replace", **PUBLISHED)
def save_both(self, name, other, version):
    record(name, "version", version=version)
    return self.span(name)
