"""Servers that a test may freeze, and locks made through the public API only."""

from __future__ import annotations

import pytest

from tests.attacks.attack import Locks, leave_all_locks
from tests.conftest import DEFAULT_KIND
from tests.support.servers import Server


@pytest.fixture(autouse=True)
def _leave_all_locks():
    """A test that fails inside a lock must not make the next one fail."""
    yield
    leave_all_locks()


@pytest.fixture
def own_server():
    """A server of this test alone, which the test may freeze, and whose connections it may count."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture
def locks(server):
    """Makes locks of an app whose lock server is the default server."""
    return Locks(server.url)


@pytest.fixture
def distant(proxy):
    """Makes locks of an app that reaches the default server through the proxy."""
    return Locks(proxy.url + "?socket_timeout=0.5")
