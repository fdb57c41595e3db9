"""Real workers around the app in `proj`, and looks at the keys and queues that they use."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.integration.conftest import (
    environment,
    hold,
    name,
    overlaps,
    records,
    spans,
    store,
)
from tests.support.daemon import running
from tests.support.processes import wait_until
from tests.support.workers import Worker

__all__ = ["environment", "hold", "name", "overlaps", "records", "spans", "store"]

PROJ = "tests.unique.proj"
REDELIVERY = {"visibility_timeout": 2, "unacked_restore_interval": 0.5, "unacked_restore_throttle": 1}


@pytest.fixture(scope="session")
def proj(environment):
    """The app's module in this process, to publish from."""
    os.environ.update(environment)
    from tests.unique import proj  # noqa: PLC0415 - it reads the environment

    return proj


@pytest.fixture(scope="session")
def start_fleet(environment):
    """Starts workers that are gone at the end of the block; if that fails their logs are shown."""

    @contextmanager
    def start(count=2, *, conf=None, env=None, **options):
        env = {**environment, **(env or {}), "RLOCK_TEST_CONF": json.dumps(conf or {})}
        fleet = [Worker(f"{PROJ}:app", env=env, **options) for _ in range(count)]
        with running(fleet):
            yield fleet

    return start


@pytest.fixture(scope="module")
def fleet(start_fleet, proj):
    """Two prefork workers with two children each; taken once for a file of tests."""
    with start_fleet(2, concurrency=2) as workers:
        yield workers


@pytest.fixture
def idle(name):
    """A queue that nobody takes from, until a test starts a worker for it."""
    return f"idle-{name}"


@pytest.fixture
def messages(store):
    """What lies in a queue."""
    return lambda queue: [json.loads(raw) for raw in store.lrange(queue, 0, -1)]


@pytest.fixture
def holder(store):
    """Who holds a key, as Redis has it (`delivery:task-id`); None when it is free."""

    def of(key):
        fields = [field.decode() for field in store.hkeys(lock(key))]
        owners = [field for field in fields if not field.startswith("@")]
        assert len(owners) <= 1
        return owners[0] if owners else None

    return of


@pytest.fixture
def lease_of(store):
    """How many seconds a key is still held, unless somebody does something."""
    return lambda key: store.pttl(lock(key)) / 1000


@pytest.fixture
def await_free(holder):
    def wait(key, timeout=20):
        wait_until(lambda: holder(key) is None, timeout=timeout, what=f"{key} to be free")

    return wait


@pytest.fixture
def await_start(records):
    """The first record of a run under a name."""
    return lambda name: wait_until(lambda: records(name), timeout=30, what=f"a run of {name}")[0]


@pytest.fixture
def taken_at(records):
    """When the runs under a name took their lock, by the server's clock, of which tokens are made."""
    return lambda name: [entry["token"] / 1e6 for entry in records(name) if entry["event"] == "start"]


def lock(key):
    """What a key is called in Redis."""
    return f"rlock:{{{key}}}"


def port_of(url):
    """Of a server on this machine."""
    return urlsplit(url).port
