"""Real workers around the app in `proj`; the lock has a server of its own, and only that is in trouble."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager

import pytest
from celery import Celery

from tests.conftest import DEFAULT_KIND
from tests.faults.fleet import Sent, make_worker
from tests.support.daemon import running, show

PROJ = "tests.trouble.proj"


@pytest.fixture(scope="session")
def environment(servers):
    url = servers(DEFAULT_KIND).url
    return {"RLOCK_TEST_BROKER": url, "RLOCK_TEST_BACKEND": url, "RLOCK_TEST_STORE": url}


@pytest.fixture(scope="session")
def start_fleet(environment):
    """Starts workers with this URL for their locks, to be gone at the end of the block."""

    @contextmanager
    def start(url=None, *, queue, count=2, **options):
        options |= {"conf": {"rlock_url": url}, "queues": [queue], "concurrency": 2, "app": PROJ}
        fleet = [make_worker(environment, **options) for _ in range(count)]
        with running(fleet):
            yield fleet

    return start


@pytest.fixture(autouse=True)
def show_the_logs_of_a_failure(request):
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before and "fleet" in request.fixturenames:
        show(request.getfixturevalue("fleet"))


@pytest.fixture(scope="session")
def client(environment):
    """A Celery app to publish with and to read results."""
    broker, backend = environment["RLOCK_TEST_BROKER"], environment["RLOCK_TEST_BACKEND"]
    with Celery("client", broker=broker, backend=backend, set_as_current=False) as app:
        yield app


@pytest.fixture(scope="session")
def send(client):
    return sender(client)


def sender(client, default=None):
    """Publishes a task of `proj` by its name."""

    def publish(task, *args, queue=default):
        return Sent(client.backend, client.send_task(f"{PROJ}.{task}", args, queue=queue).id)

    return publish


@pytest.fixture(scope="session")
def store(servers):
    return servers(DEFAULT_KIND).client()


@pytest.fixture
def name():
    return new_name()


def new_name():
    """A key that no other test uses."""
    return f"key-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def records(store):
    """What has happened under a name, oldest first: all of it, or one kind of event."""

    def of(name, event=None):
        entries = [json.loads(entry) for entry in store.lrange(f"record:{name}", 0, -1)]
        return [entry for entry in entries if event in {None, entry["event"]}]

    return of


@pytest.fixture(scope="session")
def tell(store):
    """Ends a task that runs until it is told."""
    return lambda name: store.set(f"told:{name}", 1, ex=600)
