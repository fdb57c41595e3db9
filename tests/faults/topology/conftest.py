"""Sentinel and Cluster setups, whole again before each test."""

from __future__ import annotations

import uuid

import pytest

from celery_rlock.core.client import connect
from celery_rlock.core.scripts import Scripts
from tests.conftest import DEFAULT_KIND
from tests.support.cluster import Cluster
from tests.support.sentinel import SentinelSetup
from tests.support.table import Table
from tests.topologies.fleet import PAGE, TITLES

COSTS = pytest.StashKey[Table]()


def pytest_configure(config):
    config.stash[COSTS] = Table("what a fault costs", "topologies", PAGE, TITLES)


def pytest_terminal_summary(terminalreporter, config):
    config.stash[COSTS].tell(terminalreporter)


@pytest.fixture(scope="session")
def costs(pytestconfig):
    """The table's rows; a test that measures one adds to it."""
    return pytestconfig.stash[COSTS].rows


@pytest.fixture(scope="module")
def sentinel_setup():
    with SentinelSetup.start(DEFAULT_KIND) as setup:
        yield setup


@pytest.fixture
def sentinel(sentinel_setup):
    """Three sentinels, a primary and a replica that follows it."""
    sentinel_setup.mend()
    return sentinel_setup


@pytest.fixture(scope="module")
def cluster_of_six():
    with Cluster.start(DEFAULT_KIND) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_six):
    """Three primaries, each with a replica that follows it."""
    cluster_of_six.mend()
    return cluster_of_six


@pytest.fixture
def scripts_on():
    """The verbs on a setup, through the client that users get."""
    return lambda setup: Scripts(connect(setup.url))


@pytest.fixture
def name():
    """A key that no other test uses."""
    return f"key-{uuid.uuid4().hex[:8]}"
