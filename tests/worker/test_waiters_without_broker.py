"""Waiters lie in their worker unacknowledged: what becomes of them when it stops, or loses its broker."""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults.fleet import delivered_again_after
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.waking.fleet import SOON, await_rest, sender

QUEUE = "broker-loss"
WAITERS = 6
TIME_TO_RUN = 0.5  # for a copy that should not
TIME_TO_END = 0.5  # for an attempt whose message was delivered again, and what follows from it


@pytest.fixture(scope="module")
def send(each_broker, backend):
    return sender(each_broker, backend)


@pytest.fixture(scope="module")
def way(each_broker):
    """The workers' only way to the broker."""
    with Proxy(each_broker.port, protocol="raw") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def start_behind_proxy(start_fleet, each_broker, way):
    url = each_broker.conf.broker_url.replace(str(each_broker.port), str(way.port))
    return lambda *args, **options: start_fleet(*args, broker=url, **options)


@pytest.fixture(scope="module")
def fleet(start_behind_proxy, each_broker):
    """A worker that lost its Redis cannot give anything back: then the visibility timeout does."""
    conf = delivered_again_after(5, each_broker)
    if conf:  # a cut while kombu sweeps would keep it from sweeping again for five minutes
        conf["broker_transport_options"]["unacked_mutex_expire"] = 1
    with start_behind_proxy(2, concurrency=2, queues=[QUEUE], conf=conf) as fleet:
        yield fleet


@pytest.fixture
def wait_for(send, waiters):
    """Has tasks wait for a key."""

    def wait(name, how_many=WAITERS, task="work", queue=QUEUE):
        sent = [send(task, name, queue=queue) for _ in range(how_many)]
        waiters.await_count(name, how_many)
        return sent

    return wait


@pytest.fixture
def assert_each_ran_once(count, waiters):
    def check(name, sent):
        wait_until(lambda: not waiters(name), timeout=SOON, what="the turn of copies")
        time.sleep(TIME_TO_RUN)
        assert count(name, "start") == count(name, "end") == {task.id: 1 for task in sent}

    return check


def cut(way):
    for connection in list(way._connections):
        connection.end()


def be_away_for_a_while(way):
    way.refuse()
    time.sleep(1)
    way.accept()


@pytest.mark.parametrize("task", ["work", "late"])
@pytest.mark.parametrize("loss", [cut, be_away_for_a_while], ids=lambda loss: loss.__name__)
def test_waiters_of_a_worker_that_lost_its_broker_run_once(
    fleet, each_broker, way, wait_for, name, hold, waiters, assert_each_ran_once, loss, task
):
    """Semantics 10 and 12: they come back, wait again, and are woken."""
    with hold(name):
        sent = wait_for(name, task=task)
        await_rest(each_broker, fleet)  # Celery's pool may misread a result that comes as the broker goes
        before = set(waiters(name))
        loss(way)
        waiters.await_again(name, sent, before)
    for one in sent:
        assert one.get(timeout=SOON) == one.id
    assert_each_ran_once(name, sent)
    with hold(f"{name}-after"):
        [after] = wait_for(f"{name}-after", 1)
    assert after.get(timeout=SOON) == after.id


def test_a_busy_attempt_during_which_the_broker_was_lost_is_no_end(
    fleet, way, send, store, name, hold, waiters, records, assert_each_ran_once
):
    """Semantics 10: its message comes back, its waiter is there too, and one of them runs."""
    asked = f"asked:{name}"
    with hold(name):
        sent = send("late_and_slow_to_wait", name, queue=QUEUE)
        wait_until(lambda: records(asked), timeout=SOON, what="the busy attempt")
        cut(way)
        wait_until(lambda: len(records(asked)) > 1, timeout=2 * SOON, what="the message to come back")
        store.set(f"told:{name}", 1, ex=60)
        waiters.await_again(name, [sent], set())
        time.sleep(TIME_TO_END)
    assert sent.get(timeout=SOON) == sent.id
    assert_each_ran_once(name, [sent])


def test_a_warm_shutdown_gives_its_waiters_to_others(
    fleet, start_behind_proxy, each_broker, wait_for, queue, name, hold, waiters, assert_each_ran_once
):
    """Semantics 12: no place is left behind, nothing is lost, and nothing runs twice."""
    taking_over = {"destination": [fleet[0].nodename], "reply": True, "timeout": 10, "limit": 1}
    with hold(name):
        with start_behind_proxy(1, queues=[queue]) as [leaving]:
            sent = wait_for(name, queue=queue)
            leaving.signal(signal.SIGTERM)
            assert leaving.wait(SOON) == 0
        assert not waiters(name)
        each_broker.control.add_consumer(queue, **taking_over)
        waiters.await_count(name, WAITERS)
    for one in sent:
        assert one.get(timeout=SOON) == one.id
    each_broker.control.cancel_consumer(queue, **taking_over)
    assert_each_ran_once(name, sent)
