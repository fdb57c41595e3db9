"""pytest-celery's `celery_setup` with one Redis-like server and two workers that know the smoke tasks."""

from __future__ import annotations

import pytest
from pytest_celery import CeleryBackendCluster, CeleryBrokerCluster, CeleryWorkerCluster

from tests.smoke import tasks
from tests.smoke.engine import docker_is_asked_for

# pytest takes fixtures from a conftest's names, and pytest-celery's stock ones give way to these.
if docker_is_asked_for():
    from tests.smoke.docker_fixtures import *  # noqa: F403
else:
    from tests.smoke.process_fixtures import *  # noqa: F403


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    """The stock tasks, which `celery_setup.ready(ping=True)` needs, and ours."""
    return {*default_worker_tasks, tasks}


@pytest.fixture
def celery_broker_cluster(celery_redis_broker):
    """One Redis: the stock way is a test for each known broker, in a set's order, which breaks xdist."""
    return CeleryBrokerCluster(celery_redis_broker)


@pytest.fixture
def celery_backend_cluster(celery_redis_backend):
    return CeleryBackendCluster(celery_redis_backend)


@pytest.fixture
def celery_worker_cluster(celery_setup_worker, second_worker):
    """Both are started before either is waited for."""
    cluster = CeleryWorkerCluster(celery_setup_worker, second_worker)
    assert cluster.ready()
    return cluster
