"""One Sentinel setup and one Cluster for all tests of a process. Each test finds every node running."""

from __future__ import annotations

import pytest

from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.cluster import Cluster
from tests.support.sentinel import SentinelSetup
from tests.support.servers import DEFAULT_KIND


@pytest.fixture(scope="session")
def sentinel_setup():
    with SentinelSetup.start(DEFAULT_KIND) as setup:
        yield setup


@pytest.fixture
def sentinel(sentinel_setup):
    """Three sentinels, a primary and a replica that follows it."""
    sentinel_setup.mend()
    return sentinel_setup


@pytest.fixture(scope="session")
def cluster_of_six():
    with Cluster.start(DEFAULT_KIND) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_six):
    """Three primaries, each with a replica that follows it."""
    cluster_of_six.mend()
    return cluster_of_six


@pytest.fixture
def lock_server_on():
    """The lock server's verbs on a setup, through the client that users get."""
    return lambda setup: RedisLockServer(connect(setup.url))
