"""One app factory for every test project, and the helpers that the tasks of these projects call.

A test project is a module with `app = make_app("proj", ...)` and tasks. These environment variables configure
its processes:

- RLOCK_TEST_BROKER, RLOCK_TEST_BACKEND: the URLs of the broker and of the result backend.
- RLOCK_TEST_LOCKS: the URL of the Redis of the locks. It is the backend unless it is set.
- RLOCK_TEST_STORE: the URL of the Redis that the tests read records from. It is the backend unless it is set.
- RLOCK_TEST_CONF: more settings of the app as JSON.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery

from tests.support.clients import bare_client

STEP = 0.01


def make_app(name: str, **conf: Any) -> Celery:
    """An app with the settings that all tests share, then those of `conf`, then those of RLOCK_TEST_CONF."""
    app = Celery(name, set_as_current=False)
    app.conf.update(
        broker_url=os.environ.get("RLOCK_TEST_BROKER"),
        result_backend=os.environ.get("RLOCK_TEST_BACKEND"),
        rlock_url=os.environ.get("RLOCK_TEST_LOCKS"),
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=1,
    )
    app.conf.update(conf)
    app.conf.update(json.loads(os.environ.get("RLOCK_TEST_CONF", "{}")))
    return app


def store() -> redis.Redis:
    """The tests' own connection, which no proxy and no fault touches."""
    return bare_client(os.environ.get("RLOCK_TEST_STORE") or os.environ["RLOCK_TEST_BACKEND"])


def record(name: str, event: str, *, at: float | None = None, **fields: Any) -> None:
    """Append an entry to the records of `name`; the fixture `records` reads them."""
    with store() as client:
        entry = {"at": at or time.time(), "event": event, **fields}
        client.rpush(f"record:{name}", json.dumps(entry))


def busy_for(seconds: float) -> None:
    """Work for `seconds` in short steps, so that an exception from outside can interrupt it at any moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(STEP)


def is_told(name: str) -> bool:
    """Whether the test has called the fixture `tell` with this name."""
    with store() as client:
        return bool(client.exists(told(name)))


def wait_until_told(name: str) -> None:
    """Return when the test calls the fixture `tell` with this name."""
    with store() as client:
        while not client.exists(told(name)):
            time.sleep(STEP)


def told(name: str) -> str:
    """The Redis key that `tell` sets."""
    return f"told:{name}"
