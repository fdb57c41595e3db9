"""Workers of the fault tests, their logs, and the tasks sent to them."""

from __future__ import annotations

import json

from celery import states

from tests.support.processes import wait_until
from tests.support.workers import Worker

PROJ = "tests.faults.proj"


def make_worker(environment, *, conf=None, env=None, app=PROJ, **options):
    """A worker that is not launched yet; `conf` adds to the app's settings."""
    env = {**environment, **(env or {}), "RLOCK_TEST_CONF": json.dumps(conf or {})}
    return Worker(f"{app}:app", env=env, **options)


def delivered_again_after(seconds, broker):
    """Settings: with Redis what is not acknowledged comes back after `seconds`, not kombu's hour."""
    if broker.kind != "redis":
        return {}
    options = {
        "visibility_timeout": seconds,
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
    }
    return {"broker_transport_options": options}


class Sent:
    """A published task, whose result is read as it is stored: no subscription that could lag behind."""

    def __init__(self, backend, task_id):
        self._backend, self.id = backend, task_id

    @property
    def state(self):
        return self._stored()["status"]

    def get(self, timeout):
        """What it returned, or raise what it raised."""
        stored = wait_until(self._ended, timeout=timeout, what="the result")
        if isinstance(stored["result"], BaseException):
            raise stored["result"]
        return stored["result"]

    def _ended(self):
        stored = self._stored()
        return stored if stored["status"] in states.READY_STATES else None

    def _stored(self):
        return self._backend.get_task_meta(self.id, cache=False)
