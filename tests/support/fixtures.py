"""The fixtures of all tests. A folder's conftest overrides only what is different there, mostly `project`.

`servers`, `server`, `each_server`, `client`, `proxy`: Redis without workers.
`fleet_redis`, `rabbit`, `broker`, `backend`: what the workers of a fleet need.
`redis_for_locks`, `lock_proxy`, `lock_server_away`: locks on a server of their own, and the loss of it.
`start_fleet`, `fleet`, `send`, `tell`, `hold`: workers, tasks for them, and locks held from the test.
`name`, `queue`, `store`, `records`, `count`, `starts`: unique names, and what ran under a name.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter

import pytest
from celery import Celery

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support import outages
from tests.support.app import told
from tests.support.daemon import show
from tests.support.fleet import RUNNING, Publisher, Sent, running_fleet
from tests.support.proxy import Proxy
from tests.support.rabbit import Rabbit
from tests.support.servers import DEFAULT_KIND, Server, available_kinds

BROKERS = ["redis", "rabbitmq"]
LEASE = 30.0


@pytest.fixture(scope="session")
def servers():
    """One private server of each kind for a test process: call it with the kind."""
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


@pytest.fixture(scope="session")
def fleet_redis():
    """The Redis of the fleets: the broker (where that is not RabbitMQ), the result backend and the records.

    No fixture empties it, because a worker would lose its bindings.
    """
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit():
    if not Rabbit.available():
        pytest.skip("no RabbitMQ on this machine: apt-get install rabbitmq-server")
    with Rabbit.start() as node:
        yield node


@pytest.fixture(scope="module", params=BROKERS)
def broker(request, fleet_redis):
    """Each broker in turn, as a Celery app to publish with; result backend and lock are always in Redis."""
    node = fleet_redis if request.param == "redis" else request.getfixturevalue("rabbit")
    with Publisher(request.param, node.url, node.port) as publisher:
        yield publisher


@pytest.fixture(scope="session")
def publisher(fleet_redis):
    """A Celery app to publish with over the Redis broker."""
    with Publisher("redis", fleet_redis.url, fleet_redis.port) as publisher:
        yield publisher


@pytest.fixture(scope="session")
def backend(fleet_redis):
    """The result backend of the fleets."""
    with Celery("reader", backend=fleet_redis.url, set_as_current=False) as reader:
        yield reader.backend


@pytest.fixture(scope="session")
def project():
    """The module of the app whose workers `start_fleet` starts and whose tasks `send` sends."""
    return "tests.support.proj"


@pytest.fixture(scope="session")
def environment(fleet_redis):
    """The environment variables of a worker, with Redis as the broker."""
    url = fleet_redis.url
    return {"RLOCK_TEST_BROKER": url, "RLOCK_TEST_BACKEND": url, "RLOCK_TEST_STORE": url}


@pytest.fixture(scope="module")
def start_fleet(project, environment):
    """`with start_fleet(2, queues=[queue], conf={...}) as workers:` see running_fleet for the options."""

    def start(count=1, **options):
        return running_fleet(project, environment, count, **options)

    return start


@pytest.fixture(scope="module")
def fleet(start_fleet):
    """Two prefork workers with two pool processes each, which take from the queue "celery"."""
    with start_fleet(2, concurrency=2) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def show_the_logs_of_a_failure(request):
    """Print the ends of the logs of all running workers when the test fails."""
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        show(RUNNING)


@pytest.fixture(scope="module")
def send(project, publisher, backend):
    """Publishes a task by its name, over Redis: `send("work", name, queue=queue).get(timeout=20)`."""
    return sender(project, publisher, backend)


def sender(project, app, backend):
    """What the fixture `send` is, for another app to publish with."""

    def send(task, *args, queue="celery", **options):
        return Sent(backend, app.send_task(f"{project}.{task}", args, queue=queue, **options).id)

    return send


@pytest.fixture(scope="session")
def tell(store):
    """Lets a task that calls `wait_until_told(name)` go on."""
    return lambda name: store.set(told(name), 1, ex=600)


@pytest.fixture(scope="session")
def redis_for_locks():
    """A Redis for locks alone, apart from broker and results."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def lock_proxy(redis_for_locks):
    """The way of a fleet to `redis_for_locks`: start the fleet with `conf={"rlock_url": lock_proxy.url}`."""
    with Proxy(redis_for_locks.port) as proxy:
        yield proxy


@pytest.fixture
def lock_server_away(lock_proxy):
    """`with lock_server_away():` no connection to the lock server works inside the block."""
    return lambda: outages.refused(lock_proxy)


@pytest.fixture
def lock_server_silent(lock_proxy):
    """`with lock_server_silent():` the lock server accepts connections and never answers."""
    return lambda: outages.frozen(lock_proxy)


@pytest.fixture(scope="session")
def hold(fleet_redis):
    """`with hold(name) as lock:` this process holds the key, as another owner than every task."""
    return holder(fleet_redis)


def holder(server, ttl=LEASE):
    """What the fixture `hold` is, for locks on another server."""
    lock_server = RedisLockServer(connect(server.url))
    return lambda name, ttl=ttl: ReentrantLock(name, lock_server=lock_server, ttl=ttl)


@pytest.fixture
def through_proxy(proxy):
    """The lock server's verbs over the proxy, with the timeouts and retries that users get."""
    return RedisLockServer(connect(proxy.url + "?socket_timeout=0.5"))


@pytest.fixture
def name():
    """A key that no other test uses."""
    return new_name()


def new_name():
    return f"key-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def queue(name):
    """A queue that no other test uses, and that no worker takes from until the test starts one."""
    return f"queue-{name}"


@pytest.fixture(scope="session")
def store(fleet_redis):
    """A client of the Redis where tasks record what they do."""
    return fleet_redis.client()


@pytest.fixture(scope="session")
def records(store):
    """What has happened under a name, oldest first: all of it, or one kind of event."""

    def of(name, event=None):
        entries = [json.loads(entry) for entry in store.lrange(f"record:{name}", 0, -1)]
        return [entry for entry in entries if event in {None, entry["event"]}]

    return of


@pytest.fixture(scope="session")
def count(records):
    """How often each task id has recorded an event under a name."""
    return lambda name, event: Counter(entry["id"] for entry in records(name, event))


@pytest.fixture(scope="session")
def starts(records):
    """The ids of the runs under a name, in the order of their starts."""
    return lambda name: [entry["id"] for entry in records(name, "start")]
