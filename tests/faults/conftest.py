"""Real workers around the app in `proj`, with Redis and with RabbitMQ as the broker."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from celery import Celery, states

from tests.conftest import DEFAULT_KIND
from tests.faults import table, watching
from tests.faults.fleet import PROJ, Sent, make_worker
from tests.support.daemon import running, show
from tests.support.processes import wait_until
from tests.support.rabbit import Rabbit
from tests.support.table import Table
from tests.support.workers import Worker

BROKERS = ["redis", "rabbitmq"]
WITHIN = 20.0
ENDINGS = pytest.StashKey[Table]()


def pytest_configure(config):
    config.stash[ENDINGS] = Table("how it ended", "faults", "CELERY_RLOCK_FAULTS_TABLE", table.TITLES)


def pytest_terminal_summary(terminalreporter, config):
    config.stash[ENDINGS].tell(terminalreporter)


@pytest.fixture(scope="session")
def rows(pytestconfig):
    """Of the table of endings; a test that measures one adds to it."""
    return pytestconfig.stash[ENDINGS].rows


@pytest.fixture(scope="session")
def rabbit():
    if not Rabbit.available():
        pytest.skip("no RabbitMQ on this machine: apt-get install rabbitmq-server")
    with Rabbit.start() as node:
        yield node


@pytest.fixture(scope="module", params=BROKERS)
def broker(request, servers):
    """Each broker in turn, as a Celery app to publish with; result backend and lock are always in Redis."""
    node = servers(DEFAULT_KIND) if request.param == "redis" else request.getfixturevalue("rabbit")
    with Celery("client", broker=node.url, set_as_current=False) as client:
        client.kind, client.port = request.param, node.port
        yield client


@pytest.fixture(scope="session")
def backend(servers):
    with Celery("reader", backend=servers(DEFAULT_KIND).url, set_as_current=False) as reader:
        yield reader.backend


@pytest.fixture(scope="module")
def environment(servers, broker, tmp_path_factory):
    """What a process needs to be part of the fleet."""
    files = tmp_path_factory.mktemp("alone")
    backend = servers(DEFAULT_KIND).url
    return {
        "RLOCK_TEST_BROKER": broker.conf.broker_url,
        "RLOCK_TEST_BACKEND": backend,
        "RLOCK_TEST_FILES": str(files),
    }


@pytest.fixture(scope="module")
def start_fleet(environment):
    """Starts workers, to be gone at the end of the block; `queues` tell what they take."""

    @contextmanager
    def start(count=1, *, conf=None, env=None, app=PROJ, **options):
        fleet = [make_worker(environment, conf=conf, env=env, app=app, **options) for _ in range(count)]
        with running(fleet):
            yield fleet

    return start


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def send(broker, backend):
    """Publishes a task of `proj` by its name."""

    def publish(task, *args, queue, **options):
        return Sent(backend, broker.send_task(f"{PROJ}.{task}", args, queue=queue, **options).id)

    return publish


@pytest.fixture(scope="module")
def records(store):
    """What the runs under a name have recorded, oldest first."""
    return lambda name: [json.loads(entry) for entry in store.lrange(f"record:{name}", 0, -1)]


@pytest.fixture(scope="module")
def count(records):
    """How often the runs under a name have recorded an event, by task id."""
    return lambda name, event: Counter(entry["id"] for entry in records(name) if entry["event"] == event)


@dataclass
class Victim:
    """A task that runs and is about to end."""

    client: Celery
    worker: Worker
    id: str
    pid: int


@dataclass
class Ending:
    """Times in seconds since the run ended: Python left it, or else its process was dead."""

    free_after: float
    running_after: float
    completed: int

    def row(self, ending, pool, broker):
        times = ([self.free_after * 1000], [self.running_after * 1000])
        return table.Row(ending, pool, broker, self.completed, *times)


@pytest.fixture
def ending_of(broker, send, records, count, store, name, rows):
    """Lets a task run, has another wait for its lock, ends the first, and says what became of them."""

    def run(ending, worker, *, queue, successors, cause, pool="prefork", key=name, completions=0, **options):
        sent = send(options.pop("task", "victim"), key, *options.pop("args", ()), queue=queue, **options)
        start = wait_until(lambda: records(key), timeout=30, what="the victim to run")[0]
        freed = watching.end_of_ownership(store, f"rlock:{{{key}}}", sent.id)
        died = watching.death_of(start["pid"])
        successor = send("work", key, queue=successors)
        wait_until(lambda: successor.state == states.RETRY, timeout=10, what="the successor to wait")
        cause(Victim(broker, worker, sent.id, start["pid"]))
        assert freed.join(WITHIN), f"the lock was not free {WITHIN} s after {ending}"
        assert successor.get(timeout=WITHIN) == successor.id
        wait_until(lambda: count(key, "end")[sent.id] >= completions, timeout=WITHIN, what="the victim's end")
        left = [entry for entry in records(key) if (entry["event"], entry["pid"]) == ("left", start["pid"])]
        over_at = left[0]["at"] if left and left[0]["id"] == sent.id else died.join(WITHIN)
        running_at = next(entry["at"] for entry in records(key)[1:] if entry["id"] == successor.id)
        result = Ending(max(0, freed.at - over_at), running_at - over_at, count(key, "end")[sent.id])
        if ending:
            rows.append(result.row(ending, pool, broker.kind))
        assert not count(key, "overlap")
        return result

    def run_or_show(ending, worker, **options):
        try:
            return run(ending, worker, **options)
        except BaseException:
            show([worker])
            raise

    return run_or_show
