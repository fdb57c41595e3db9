"""Real workers around the app in `proj`; the locks have a server of their own."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from contextlib import contextmanager

import pytest
from celery import Celery

from tests.conftest import DEFAULT_KIND
from tests.faults.fleet import make_worker
from tests.support.daemon import running as running_fleet
from tests.support.daemon import show
from tests.support.rabbit import Rabbit
from tests.support.servers import Server
from tests.waking.fleet import PROJ, QUEUE, Waiters, holder, sender


@pytest.fixture(scope="session")
def rabbit():
    if not Rabbit.available():
        pytest.skip("no RabbitMQ on this machine: apt-get install rabbitmq-server")
    with Rabbit.start() as node:
        yield node


@pytest.fixture(scope="session")
def lock_server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def each_broker(request, servers):
    """Each broker in turn, as a Celery app to publish with; result backend and lock are always in Redis."""
    node = servers(DEFAULT_KIND) if request.param == "redis" else request.getfixturevalue("rabbit")
    with Celery("client", broker=node.url, set_as_current=False) as client:
        client.kind, client.port = request.param, node.port
        yield client


@pytest.fixture(scope="session")
def backend(servers):
    with Celery("reader", backend=servers(DEFAULT_KIND).url, set_as_current=False) as reader:
        yield reader.backend


@pytest.fixture(scope="session")
def start_fleet(servers, lock_server, running):
    """Starts workers, to be gone at the end of the block; the broker is Redis unless it is given."""
    backend = servers(DEFAULT_KIND).url

    @contextmanager
    def start(count=1, *, broker=backend, lock=lock_server.url, conf=None, queues=(QUEUE,), **options):
        environment = {"RLOCK_TEST_BROKER": broker, "RLOCK_TEST_BACKEND": backend}
        options |= {"conf": {"rlock_url": lock, **(conf or {})}, "queues": queues, "app": PROJ}
        fleet = [make_worker(environment, **options) for _ in range(count)]
        running.extend(fleet)
        try:
            with running_fleet(fleet):
                yield fleet
        finally:
            for worker in fleet:
                running.remove(worker)

    return start


@pytest.fixture(scope="session")
def running():
    """All workers of the moment."""
    return []


@pytest.fixture(autouse=True)
def show_the_logs_of_a_failure(request, running):
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        show(running)


@pytest.fixture(scope="module")
def fleet(start_fleet):
    """Two prefork workers that take from `QUEUE`, and that no test harms."""
    with start_fleet(2, concurrency=2) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def app(servers):
    """A Celery app to publish with, over the Redis broker."""
    with Celery("client", broker=servers(DEFAULT_KIND).url, set_as_current=False) as client:
        yield client


@pytest.fixture(scope="session")
def send(app, backend):
    return sender(app, backend)


@pytest.fixture(scope="session")
def waiters(lock_server):
    return Waiters(lock_server)


@pytest.fixture(scope="session")
def hold(lock_server):
    """Holds a key from here, as another owner, until the block's end."""
    return holder(lock_server)


@pytest.fixture(scope="session")
def store(servers):
    return servers(DEFAULT_KIND).client()


@pytest.fixture
def name():
    """A key that no other test uses."""
    return f"key-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def queue(name):
    """A queue that no other test uses, so that what a dead worker left behind troubles nobody."""
    return f"queue-{name}"


@pytest.fixture(scope="session")
def records(store):
    """What the runs under a name have recorded, oldest first."""
    return lambda name: [json.loads(entry) for entry in store.lrange(f"record:{name}", 0, -1)]


@pytest.fixture(scope="session")
def starts(records):
    """The ids of the runs under a name, in the order of their starts."""
    return lambda name: [entry["id"] for entry in records(name) if entry["event"] == "start"]


@pytest.fixture(scope="session")
def count(records):
    """How often the runs under a name have recorded an event, by task id."""
    return lambda name, event: Counter(entry["id"] for entry in records(name) if entry["event"] == event)


@pytest.fixture(autouse=True)
def nothing_for_ever(waiters):
    """Whatever a test leaves beside its locks ends by itself."""
    yield
    assert [key for key in waiters.client.scan_iter("rlock:*") if waiters.client.ttl(key) == -1] == []
