"""Real workers of the project in `tasks`. Their locks are on another server, and only that one fails."""

from __future__ import annotations

import pytest

from tests.faults.server.lock_outages import QUEUE, TIMEOUT, server_with_password
from tests.support.fleet import running_fleet


@pytest.fixture(scope="session")
def project():
    return "tests.faults.server.tasks"


@pytest.fixture(scope="module")
def start_fleet(project, environment):
    """Starts workers whose locks are at this URL, and which run until the end of the block."""

    def start(lock_url=None, *, queue, count=2, **options):
        options |= {"conf": {"rlock_url": lock_url}, "queues": [queue], "concurrency": 2}
        return running_fleet(project, environment, count, **options)

    return start


@pytest.fixture(scope="module")
def server():
    """The lock server of `fleet`, for this module only."""
    with server_with_password() as server:
        yield server


@pytest.fixture(scope="module")
def fleet(start_fleet, server):
    with start_fleet(f"{server.url}?socket_timeout={TIMEOUT}", queue=QUEUE) as fleet:
        yield fleet
