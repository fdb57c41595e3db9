"""Real workers around the app in `proj`."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import contextmanager
from itertools import pairwise

import pytest

from tests.conftest import DEFAULT_KIND
from tests.support.daemon import running
from tests.support.workers import Worker

PROJ = "tests.integration.proj:app"


@pytest.fixture(scope="session")
def environment(servers):
    """What a process needs to be part of the fleet."""
    url = servers(DEFAULT_KIND).url
    return {"RLOCK_TEST_BROKER": url, "RLOCK_TEST_BACKEND": url, "RLOCK_TEST_STORE": url}


@pytest.fixture(scope="session")
def proj(environment):
    """The app's module in this process, to publish from."""
    os.environ.update(environment)
    from tests.integration import proj  # noqa: PLC0415 - it reads the environment

    return proj


@pytest.fixture(scope="session")
def start_fleet(environment):
    """Starts workers that take from one queue and are gone at the end of the block."""

    @contextmanager
    def start(count=2, *, conf=None, env=None, **options):
        env = {**environment, **(env or {}), "RLOCK_TEST_CONF": json.dumps(conf or {})}
        fleet = [Worker(PROJ, env=env, **options) for _ in range(count)]
        with running(fleet):
            yield fleet

    return start


@pytest.fixture(scope="module")
def fleet(start_fleet, proj):
    """Two prefork workers with two children each; taken once for a file of tests."""
    with start_fleet(2, concurrency=2) as workers:
        yield workers


@pytest.fixture
def store(proj):
    return proj.store()


@pytest.fixture
def name():
    """A key that no other test uses."""
    return f"key-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def records(store):
    """What the runs under a name have recorded, oldest first."""
    return lambda name: [json.loads(entry) for entry in store.lrange(f"record:{name}", 0, -1)]


@pytest.fixture
def spans(records):
    """The runs under a name as (start, end), in the order of their starts."""

    def of(name):
        entries = records(name)
        starts = sorted(entry["at"] for entry in entries if entry["event"] == "start")
        ends = sorted(entry["at"] for entry in entries if entry["event"] == "end")
        return list(zip(starts, ends, strict=True))

    return of


@pytest.fixture
def overlaps(spans):
    """How many runs began before the one before had ended."""
    return lambda name: sum(earlier[1] > later[0] for earlier, later in pairwise(spans(name)))


@pytest.fixture
def hold(proj):
    """Holds a key from here, as another owner, until the block's end."""
    from celery_rlock.core.client import connect  # noqa: PLC0415
    from celery_rlock.core.lock import RLock  # noqa: PLC0415
    from celery_rlock.core.scripts import Scripts  # noqa: PLC0415

    scripts = Scripts(connect(os.environ["RLOCK_TEST_STORE"]))
    return lambda name, ttl=30: RLock(name, scripts=scripts, ttl=ttl)
