"""One fleet for all worker tests, and views of the keys, queues and waiters that they use.

The fleet takes from the queue "celery" and lives as long as the test process: starting workers is what costs
time. A test that needs other workers starts them with `start_fleet` on a queue of its own.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.support.fixtures import holder as make_hold
from tests.support.fixtures import sender
from tests.support.fleet import running_fleet
from tests.support.processes import wait_until
from tests.worker import proj as proj_module
from tests.worker.awaiting import WAITING, Waiters, lock


@pytest.fixture(scope="session")
def project():
    return proj_module.__name__


@pytest.fixture(scope="session")
def environment(environment, redis_for_locks):
    """The locks are on a Redis of their own: tests count its commands and look at all its keys."""
    return {**environment, "RLOCK_TEST_LOCKS": redis_for_locks.url}


@pytest.fixture(scope="session")
def proj(environment):
    """The project in this process, to publish from."""
    proj_module.app.conf.update(
        broker_url=environment["RLOCK_TEST_BROKER"],
        result_backend=environment["RLOCK_TEST_BACKEND"],
        rlock_url=environment["RLOCK_TEST_LOCKS"],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLOCK_TEST_STORE", environment["RLOCK_TEST_STORE"])  # for tasks that run here
        yield proj_module


@pytest.fixture(scope="session")
def fleet(project, environment):
    """Two prefork workers with two pool processes each. No test stops them."""
    with running_fleet(project, environment, 2, concurrency=2) as fleet:
        yield fleet


@pytest.fixture
def doomed(start_fleet, queue):
    """A worker on the test's own queue, with one pool process; the test may kill or stop it."""
    with start_fleet(1, queues=[queue]) as [worker]:
        yield worker


@pytest.fixture(scope="session")
def send(publisher, backend):
    """Publishes a task of `proj.waiting` by its name."""
    return sender(WAITING, publisher, backend)


@pytest.fixture(scope="session")
def hold(redis_for_locks):
    """`with hold(name) as lock:` this process holds the key, as another owner than every task."""
    return make_hold(redis_for_locks)


@pytest.fixture(scope="session")
def locks(redis_for_locks):
    """A client of the lock server."""
    return redis_for_locks.client()


@pytest.fixture(scope="session")
def waiters(redis_for_locks):
    """The waiters of a key, as the lock server has them."""
    return Waiters(redis_for_locks)


@pytest.fixture(autouse=True)
def every_key_expires(request):
    """After each test, every key on the lock server has a time to live."""
    yield
    if "redis_for_locks" in request.fixturenames:
        client = request.getfixturevalue("redis_for_locks").client()
        assert [key for key in client.scan_iter("rlock:*") if client.ttl(key) == -1] == []


@pytest.fixture
def spans(records):
    """The runs under a name as (start, end), in the order of their starts."""

    def of(name):
        started, ended = ([entry["at"] for entry in records(name, event)] for event in ("start", "end"))
        return list(zip(sorted(started), sorted(ended), strict=True))

    return of


@pytest.fixture
def overlaps(spans):
    """How many runs began before the run before them had ended."""
    return lambda name: sum(earlier[1] > later[0] for earlier, later in pairwise(spans(name)))


@pytest.fixture
def messages(store):
    """The messages in a queue."""
    return lambda queue: [json.loads(raw) for raw in store.lrange(queue, 0, -1)]


@pytest.fixture
def holder(locks):
    """The owner of a key as Redis has it (`delivery:task-id`), or None when the key is free."""

    def of(key):
        fields = [field.decode() for field in locks.hkeys(lock(key))]
        owners = [field for field in fields if not field.startswith("@")]
        assert len(owners) <= 1
        return owners[0] if owners else None

    return of


@pytest.fixture
def lease_of(locks):
    """How many seconds are left of a key's lease."""
    return lambda key: locks.pttl(lock(key)) / 1000


@pytest.fixture
def await_free(holder):
    """Returns when the key is free."""

    def wait(key, timeout=20):
        wait_until(lambda: holder(key) is None, timeout=timeout, what=f"{key} to be free")

    return wait


@pytest.fixture
def await_start(records):
    """Returns the first record of a run under a name, once there is one."""
    return lambda name: wait_until(lambda: records(name), timeout=30, what=f"a run of {name}")[0]


@pytest.fixture
def taken_at(records):
    """When the runs under a name took their lock, by the server's clock: a token is made of the time."""
    return lambda name: [entry["token"] / 1e6 for entry in records(name, "start")]


@pytest.fixture
def pending(locks):
    """The ids of the calls that are queued behind the run of a key, as Redis has them."""
    return lambda key: sorted(field.decode() for field in locks.hkeys(f"{lock(key)}:pending"))
