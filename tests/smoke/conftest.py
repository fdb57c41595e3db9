"""pytest-celery's `celery_setup` with one Redis-like server and two workers that know the smoke tasks."""

from __future__ import annotations

import sys

import pytest
from pytest_celery import CeleryBackendCluster, CeleryBrokerCluster, CeleryWorkerCluster

from tests.smoke import tasks
from tests.smoke.engine import docker_is_asked_for

# pytest takes fixtures from the names of a conftest; these override pytest-celery's own.
if docker_is_asked_for():
    from tests.smoke.docker_fixtures import *  # noqa: F403
else:
    from tests.smoke.process_fixtures import *  # noqa: F403


@pytest.fixture(autouse=True)
def django_settings_that_can_be_looked_at():
    """pytest-celery looks at every object of this process, and Django's settings refuse that by default."""
    django = sys.modules.get("django.conf")
    if django is not None and not django.settings.configured:
        django.settings.configure()


@pytest.fixture
def default_worker_tasks(default_worker_tasks):
    """pytest-celery's own tasks, which `celery_setup.ready(ping=True)` needs, and ours."""
    return {*default_worker_tasks, tasks}


@pytest.fixture
def celery_broker_cluster(celery_redis_broker):
    """One Redis. The default is a test for each known broker, in the order of a set, which breaks xdist."""
    return CeleryBrokerCluster(celery_redis_broker)


@pytest.fixture
def celery_backend_cluster(celery_redis_backend):
    return CeleryBackendCluster(celery_redis_backend)


@pytest.fixture
def celery_worker_cluster(celery_setup_worker, second_worker):
    """Both workers start at the same time, and are ready."""
    cluster = CeleryWorkerCluster(celery_setup_worker, second_worker)
    assert cluster.ready()
    return cluster
