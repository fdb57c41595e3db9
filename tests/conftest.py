"""One private server of each kind for a test process."""

from __future__ import annotations

import os

import pytest

from celery_rlock.core.client import connect
from celery_rlock.core.scripts import Scripts
from tests.support.proxy import Proxy
from tests.support.servers import Server, available_kinds

#: What most tests run on; the tests of the scripts and of the lock run on every kind there is.
DEFAULT_KIND = os.environ.get("CELERY_RLOCK_TEST_SERVER", available_kinds()[0])


@pytest.fixture(scope="session")
def servers():
    started = {}

    def server(kind):
        if kind not in started:
            started[kind] = Server.start(kind)
        return started[kind]

    yield server
    for running in started.values():
        running.stop()


@pytest.fixture
def server(servers):
    """The default server, empty."""
    server = servers(DEFAULT_KIND)
    server.client().flushall()
    return server


@pytest.fixture(params=available_kinds())
def each_server(request, servers):
    """Every kind of server in turn, empty."""
    server = servers(request.param)
    server.client().flushall()
    return server


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def through_proxy(proxy):
    """The verbs over the proxy, with the timeouts and retries that users get."""
    return Scripts(connect(proxy.url + "?socket_timeout=0.5"))
