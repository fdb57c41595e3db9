"""Tasks whose key functions raise what ends threads and processes, and one with a plain request class."""

from __future__ import annotations

import builtins

from billiard.process import current_process

from tests.worker.proj.app import task


def key_in_the_pool(name, error=None, seconds=0.0):
    """The key in a pool process. In the worker's parent process it raises the error of this name."""
    if error is not None and current_process().name == "MainProcess":
        raise getattr(builtins, error)("from lock_key")
    return name


@task(lock_key=key_in_the_pool, lock_backoff=0.2, lock_backoff_max=0.3)
def trapped_in_the_parent(self, name, error=None, seconds=0.0):
    return self.span(name, seconds)


def limit_in_the_pool(name, error=None, seconds=0.0):
    return int(key_in_the_pool("2", error))


@task(lock_key="{name}", lock_limit=limit_in_the_pool, lock_backoff=0.2, lock_backoff_max=0.3)
def limit_trapped_in_the_parent(self, name, error=None, seconds=0.0):
    return self.span(name, seconds)


def no_limit(name, error):
    if error is not None and current_process().name != "MainProcess":
        raise getattr(builtins, error)("from lock_limit")
    return 2


@task(lock_key="{name}", lock_limit=no_limit)
def limit_trapped(self, name, error=None):
    return self.span(name)


def no_key(name, error):
    raise getattr(builtins, error)("from lock_key")


@task(lock_key=no_key)
def trapped(self, name, error):
    return self.span(name)


@task(lock_key="{name}", Request="celery.worker.request:Request")
def with_a_plain_request(self, name):
    """Its worker's parent process adds nothing to the request."""
    return self.span(name)
