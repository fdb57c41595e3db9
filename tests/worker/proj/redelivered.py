"""Tasks that are acknowledged after their run, so that the broker may deliver them again."""

from __future__ import annotations

import time

from tests.support.app import wait_until_told
from tests.worker.proj.app import task


@task(lock_key="{name}", acks_late=True)
def late(self, name, seconds=0.0):
    return self.span(name, seconds)


@task(lock_key="{name}", acks_late=True, lock_ttl=4)
def late_until_told(self, name, until, fails=False):
    """Runs until the test calls `tell(until)`."""
    fields = self.span(name)
    wait_until_told(until)
    if fails:
        raise ValueError(name)
    return {**fields, "held": self.lock.held}


@task(lock_key="{name}", acks_late=True)
def replacing(self, name, until):
    """Replaces itself, and keeps the lock until the test calls `tell(until)`."""
    fields = self.span(name)
    if self.request.replaced_task_nesting:
        return fields
    try:
        raise self.replace(self.s(name, until))
    finally:
        wait_until_told(until)


@task(lock_key="{name}", acks_late=True)
def retrying_while_held(self, name, until):
    """Retries at once, and keeps the lock until the test calls `tell(until)`."""
    fields = self.span(name)
    if self.request.retries:
        return fields
    try:
        raise self.retry(countdown=0)
    finally:
        wait_until_told(until)


def slow_key(name):
    time.sleep(0.02)
    return name


@task(lock_key=slow_key)
def with_slow_key(self, name):
    """Runs until the test calls `tell(name)`."""
    return self.span(name, until_told=True)
