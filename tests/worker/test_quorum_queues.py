"""RabbitMQ with quorum queues: the prefetch count of a worker is fixed there.

With a topic exchange RabbitMQ itself delays a message with an ETA, in whole seconds. With a direct exchange
the worker keeps the message until its ETA.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.fixtures import sender
from tests.support.fleet import Publisher, inspect
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, WAITING

CONCURRENCY = 2
WAITERS = 20
#: Each exchange with a pool that has an event loop of its own kind.
POOLS = {"topic": "gevent", "direct": "prefork"}


def settings_of(exchange):
    return {
        "task_default_queue": f"quorum-{exchange}",
        "task_default_queue_type": "quorum",
        "task_default_exchange": f"exchange-{exchange}",
        "task_default_exchange_type": exchange,
    }


@pytest.fixture(scope="module", params=POOLS)
def exchange(request):
    return request.param


@pytest.fixture(scope="module")
def publisher(rabbit, exchange):
    with Publisher("rabbitmq", rabbit.url, rabbit.port) as publisher:
        publisher.conf.update(settings_of(exchange))
        yield publisher


@pytest.fixture(scope="module")
def send(publisher, backend, exchange):
    return partial(sender(WAITING, publisher, backend), queue=f"quorum-{exchange}")


@pytest.fixture(scope="module")
def worker(rabbit, start_fleet, exchange):
    conf = settings_of(exchange)
    options = {"queues": [f"quorum-{exchange}"], "pool": POOLS[exchange], "concurrency": CONCURRENCY}
    with start_fleet(1, env={"RLOCK_TEST_BROKER": rabbit.url}, conf=conf, **options) as [worker]:
        yield worker


def await_attempts(worker, sent, how_many):
    """Return when each task has found the lock busy so often."""

    def enough():
        log = worker.log
        return all(log.count(f"[{task.id}] waits: lock") >= how_many for task in sent)

    wait_until(enough, timeout=2 * SOON, what=f"{how_many} attempts of each")


def assert_each_runs_once(sent, count, name):
    for task in sent:
        assert task.get(timeout=SOON) == task.id
    assert count(name, "end") == {task.id: 1 for task in sent}


def test_a_waiter_is_woken(worker, send, name, hold, waiters, count):
    """Semantics 12: with quorum queues too. The backoff of the task is a minute."""
    with hold(name):
        sent = [send("soon_then_late", name) for _ in range(3)]
        waiters.await_count(name, 3)
    assert_each_runs_once(sent, count, name)


def test_the_default_backoff_of_less_than_a_second_holds_no_slot(worker, send, name, hold, waiters, count):
    """Semantics 9: RabbitMQ delays whole seconds only, and kombu refuses a delay of 0."""
    with hold(name):
        sent = [send("with_the_default_backoff", name) for _ in range(CONCURRENCY + 2)]
        waiters.await_count(name, len(sent), timeout=2 * SOON)
        other = send("work", f"{name}-other")
        assert other.get(timeout=SOON) == other.id
    assert_each_runs_once(sent, count, name)


def test_a_waiter_survives_many_attempts(worker, send, name, hold, count):
    """Semantics 9: RabbitMQ drops a message that says that it has expired in the same queue before."""
    with hold(name):
        sent = [send("asked_every_second", name, countdown=1) for _ in range(3)]
        await_attempts(worker, sent, 4)
    assert_each_runs_once(sent, count, name)


def test_waiting_tasks_do_not_fill_the_prefetch_of_the_worker(worker, send, name, hold, waiters, count):
    """Semantics 12: other tasks run while more tasks wait in the worker than it may prefetch."""
    with hold(name):
        sent = [send("soon_then_late", name) for _ in range(WAITERS)]
        waiters.await_count(name, WAITERS, timeout=2 * SOON)
        for _ in range(3 * CONCURRENCY):
            other = send("work", f"{name}-other")
            assert other.get(timeout=SOON) == other.id
    assert_each_runs_once(sent, count, name)


def test_waiting_tasks_do_not_let_the_worker_take_more_than_it_should(
    worker, send, name, hold, waiters, tell, publisher, records
):
    """The worker's prefetch count holds for all tasks but those that wait for a lock."""
    blocked = [f"{name}-{number}" for number in range(CONCURRENCY)]
    with hold(name):
        waiting = [send("soon_then_late", name) for _ in range(CONCURRENCY * 2)]
        waiters.await_count(name, len(waiting))
        blocking = [send("until_told", other) for other in blocked]
        wait_until(lambda: all(map(records, blocked)), timeout=SOON, what="the worker to be busy")
        more = [send("work", f"{name}-more-{number}") for number in range(WAITERS)]
        [reserved] = inspect(publisher, [worker], "reserved").values()
        assert len(reserved) <= 2 * CONCURRENCY
        for other in blocked:
            tell(other)
    for task in [*waiting, *more]:
        assert task.get(timeout=SOON) == task.id
    assert all(task.get(timeout=SOON) is None for task in blocking)
