"""Deployments of real workers under load, with Redis and with RabbitMQ as the broker."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from tests.conftest import DEFAULT_KIND
from tests.fleet import table
from tests.fleet.load import Journal, Load
from tests.fleet.pods import Deployment, Node, Pod
from tests.support.rabbit import Rabbit
from tests.support.servers import Server

TABLE = "CELERY_RLOCK_FLEET_TABLE"
REPORTS = pytest.StashKey[list]()
ENOUGH = 30.0  # seconds of grace for every run to end, also on a loaded machine
LOG = 6000
CONCURRENCY = 2
# What is not acknowledged comes back after six seconds, not after kombu's hour.
REDELIVERY = {"visibility_timeout": 6, "unacked_restore_interval": 0.5, "unacked_restore_throttle": 1}


def pytest_configure(config):
    config.stash[REPORTS] = []


def pytest_terminal_summary(terminalreporter, config):
    """The table, where the tests ran in this process (with xdist each process has a part of it)."""
    reports = config.stash.get(REPORTS, [])
    if reports:
        terminalreporter.section("what the fleet went through")
        terminalreporter.write_line(table.markdown(reports))
    if reports and (path := os.environ.get(TABLE)):
        table.write(reports, Path(path))


@pytest.fixture(scope="session")
def reports(pytestconfig):
    return pytestconfig.stash[REPORTS]


@pytest.fixture(scope="session")
def rabbit():
    if not Rabbit.available():
        pytest.skip("no RabbitMQ on this machine: apt-get install rabbitmq-server")
    with Rabbit.start() as node:
        yield node


@pytest.fixture(scope="module")
def listen():
    """Addresses that the module's Redis listens on beside loopback."""
    return ()


@pytest.fixture(scope="module")
def locks(listen):
    """The Redis of the locks, and of the messages where that is the broker."""
    with Server.start(DEFAULT_KIND, bind=("127.0.0.1", *listen), protected_mode="no") as server:
        yield server


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request, locks):
    """Each broker in turn, as a Celery app to publish with."""
    node = locks if request.param == "redis" else request.getfixturevalue("rabbit")
    with Celery("publisher", broker=node.url, set_as_current=False) as publisher:
        publisher.kind = request.param
        yield publisher


class Cluster:
    """A queue, the pods that take from it, and the journal that they write."""

    def __init__(self, broker, locks, files):
        self.queue = f"queue-{uuid.uuid4().hex[:6]}"
        self.broker, self.journal = broker, Journal(files)
        self.nodes = [Node(f"node-{number}") for number in range(3)]
        self.deployment = Deployment(self.pod, self.nodes, grace=ENOUGH)
        self._locks, self._files = locks, files
        self.settings, self.env = {}, {}

    def pod(self, redis=None, **options):
        """One that is not launched yet, and reaches Redis at that URL where one is given."""
        settings = dict(self.settings)
        broker = self.broker.conf.broker_url
        if self.broker.kind == "redis":
            settings["broker_transport_options"] = REDELIVERY
            broker = redis or broker
        env = {
            "RLOCK_TEST_BROKER": broker,
            "RLOCK_TEST_LOCKS": redis or self._locks.url,
            "RLOCK_TEST_FILES": str(self._files),
            "RLOCK_TEST_CONF": json.dumps(settings),
            **self.env,
        }
        options = {"concurrency": CONCURRENCY, "queues": [self.queue], **options}
        return Pod("tests.fleet.proj:app", env=env, **options)

    @contextmanager
    def under_load(self, **options):
        """Tasks are published while the block runs."""
        load = Load(self.broker, self.queue, self.journal, **options)
        load.start()
        try:
            yield load
        finally:
            load.end()

    def show(self):
        for pod in [*self.deployment.gone, *self.deployment.pods]:
            print(f"--- {pod.name}\n{pod.log[-LOG:]}")


@pytest.fixture
def cluster(broker, locks, tmp_path):
    cluster = Cluster(broker, locks, tmp_path)
    yield cluster
    cluster.deployment.stop()


@pytest.fixture
def report_of(cluster, reports):
    """Counts what became of a load; overlaps are never right."""

    def count(load, event, *, may_lose=0, may_repeat=0):
        report = load.report(event, cluster.broker.kind, within=20 if may_lose else 60)
        reports.append(report)
        if report.overlaps or report.lost > may_lose or report.ran_twice > may_repeat:
            cluster.show()
        assert report.overlaps == 0
        assert report.lost <= may_lose, load.lost()
        assert report.ran_twice <= may_repeat
        return report

    return count
