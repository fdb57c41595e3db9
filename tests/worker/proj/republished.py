"""Tasks whose messages are hard to publish again as they were."""

from __future__ import annotations

import os
import signal

from tests.support.app import is_told, record
from tests.worker.proj.app import Recorded, app, task


@task(lock_key="{name}")
def adds_up(self, name, numbers):
    """Takes a set, which JSON cannot carry."""
    self.span(name)
    return {"type": type(numbers).__name__, "sum": sum(numbers), "shown": self.request.argsrepr}


class Unpublishable(Recorded):
    """Puts something into the headers that no broker can carry."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        self.request.headers["unpublishable"] = object()


@app.task(base=Unpublishable, bind=True, shared=False, lock_key="{name}")
def unpublishable(self, name):
    return self.span(name)


@app.task(base=Unpublishable, bind=True, shared=False, lock_key="{name}", acks_late=True)
def unpublishable_late(self, name):
    return self.span(name)


class TakesItsTenant(Recorded):
    """Keeps one argument for itself, as base classes of projects with tenants do."""

    abstract = True

    def __call__(self, *args, **kwargs):
        record(f"tenants:{self.request.id}", "called", tenant=kwargs.pop("tenant"))
        return super().__call__(*args, **kwargs)


@app.task(base=TakesItsTenant, bind=True, shared=False, lock_key="{tenant}:{name}", lock_ttl=120)
def of_tenant(self, name, tenant=None, until_told=False):
    return self.span(name, until_told=until_told)


class RetriesBeforeItsRun(Recorded):
    """Retries once before its run, as soon as the test tells it to."""

    abstract = True

    def before_start(self, task_id, args, kwargs):
        [name, delay] = args
        if self.request.retries == 0 and is_told(name):
            record(name, "retry")
            raise self.retry(countdown=delay)


@app.task(base=RetriesBeforeItsRun, bind=True, shared=False, lock_key="{name}")
def retries_before_its_run(self, name, delay):
    return self.span(name)


@task(lock_key="{name}", default_retry_delay=2, retry_on_worker_lost=True)
def killed_once(self, name):
    """Celery itself publishes it again when its process is gone."""
    if self.request.retries == 0:
        record(name, "retry")
        os.kill(os.getpid(), signal.SIGKILL)
    return self.span(name)
