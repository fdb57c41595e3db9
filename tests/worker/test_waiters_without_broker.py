"""A worker keeps its waiting tasks unacknowledged. What happens to them when it stops or loses its broker."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest
from kombu import Connection

from celery_rlock.worker.parked import ParkedTask
from tests.support.fixtures import sender
from tests.support.fleet import await_rest, redelivered_after
from tests.support.outages import refused
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.worker.awaiting import SOON, WAITING

QUEUE = "broker-loss"
WAITERS = 6
#: A second run of a task that ran already would begin within this time.
TIME_TO_RUN = 0.5
#: An attempt whose message was redelivered ends within this time.
TIME_TO_END = 0.5


@pytest.fixture(scope="module")
def send(broker, backend):
    return sender(WAITING, broker, backend)


@pytest.fixture(scope="module")
def way(broker):
    """The workers reach the broker through this proxy only."""
    with Proxy(broker.port, protocol="raw") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def start_behind_proxy(start_fleet, broker, way):
    url = broker.conf.broker_url.replace(str(broker.port), str(way.port))
    return lambda *args, **options: start_fleet(*args, env={"RLOCK_TEST_BROKER": url}, **options)


@pytest.fixture(scope="module")
def fleet(start_behind_proxy, broker):
    """A worker that lost its Redis broker cannot return its messages: the visibility timeout does."""
    conf = redelivered_after(3, broker.kind)
    with start_behind_proxy(2, concurrency=2, queues=[QUEUE], conf=conf) as fleet:
        yield fleet


@pytest.fixture
def wait_for(send, waiters):
    """Sends tasks that wait for a key."""

    def wait(name, how_many=WAITERS, task="work", queue=QUEUE):
        sent = [send(task, name, queue=queue) for _ in range(how_many)]
        waiters.await_count(name, how_many)
        return sent

    return wait


@pytest.fixture
def assert_each_ran_once(count, waiters):
    def check(name, sent):
        wait_until(lambda: not waiters(name), timeout=SOON, what="the redelivered messages to be dropped")
        time.sleep(TIME_TO_RUN)
        assert count(name, "start") == count(name, "end") == {task.id: 1 for task in sent}

    return check


def cut(way):
    way.cut()


def be_away_for_a_while(way):
    with refused(way):
        time.sleep(1)


REPETITION = [
    ("redis", be_away_for_a_while, "work"),
    ("redis", cut, "late"),
    ("redis", cut, "work"),
    ("rabbitmq", cut, "late"),
    ("rabbitmq", be_away_for_a_while, "late"),
    ("rabbitmq", be_away_for_a_while, "work"),
]


@pytest.mark.parametrize(
    ("broker", "loss", "task"),
    [
        ("redis", be_away_for_a_while, "late"),
        ("rabbitmq", cut, "work"),
        *(pytest.param(*setup, marks=pytest.mark.slow) for setup in REPETITION),
    ],
    indirect=["broker"],
    scope="module",
)
def test_waiters_of_a_worker_that_lost_its_broker_run_once(
    fleet, broker, way, wait_for, name, hold, waiters, assert_each_ran_once, loss, task
):
    """Semantics 10 and 12: their messages are redelivered, and the tasks wait again and are woken."""
    with hold(name):
        sent = wait_for(name, task=task)
        await_rest(broker, fleet)  # Celery's pool may misread a result that comes while the broker goes away
        before = set(waiters(name))
        loss(way)
        waiters.await_again(name, sent, before)
    for one in sent:
        assert one.get(timeout=SOON) == one.id
    assert_each_ran_once(name, sent)
    with hold(f"{name}-after"):
        [after] = wait_for(f"{name}-after", 1)
    assert after.get(timeout=SOON) == after.id


def test_a_busy_attempt_that_loses_its_broker_does_not_end_the_task(
    fleet, way, send, tell, name, hold, waiters, records, assert_each_ran_once
):
    """Semantics 10: its message is redelivered while its waiter is there too, and one of them runs."""
    asked = f"asked:{name}"
    with hold(name):
        sent = send("late_and_slow_to_wait", name, queue=QUEUE)
        wait_until(lambda: records(asked), timeout=SOON, what="the busy attempt")
        cut(way)
        wait_until(lambda: len(records(asked)) > 1, timeout=2 * SOON, what="the message to come back")
        tell(name)
        waiters.await_again(name, [sent], set())
        time.sleep(TIME_TO_END)
    assert sent.get(timeout=SOON) == sent.id
    assert_each_ran_once(name, [sent])


def test_a_warm_shutdown_returns_its_waiters_to_the_broker(
    fleet, start_behind_proxy, broker, wait_for, queue, name, hold, waiters, assert_each_ran_once
):
    """Semantics 12: another worker takes them; no place is left behind, and each runs once."""
    taking_over = {"destination": [fleet[0].nodename], "reply": True, "timeout": 10, "limit": 1}
    with hold(name):
        with start_behind_proxy(1, queues=[queue]) as [leaving]:
            sent = wait_for(name, queue=queue)
            leaving.signal(signal.SIGTERM)
            assert leaving.wait(SOON) == 0
        assert not waiters(name)
        broker.control.add_consumer(queue, **taking_over)
        waiters.await_count(name, WAITERS)
    for one in sent:
        assert one.get(timeout=SOON) == one.id
    broker.control.cancel_consumer(queue, **taking_over)
    assert_each_ran_once(name, sent)


def test_a_connection_that_kombu_has_closed_stops_no_worker_on_its_way_out(publisher, queue, caplog):
    """kombu raises an AttributeError then, which is no error of the broker."""
    with Connection(publisher.conf.broker_url) as connection:
        messages = connection.SimpleQueue(queue)
        messages.put("a waiting task")
        message = messages.get(timeout=SOON)
        connection.collect()  # as Celery does after it has lost the broker
        message.channel._disconnect_pools()
        request = SimpleNamespace(acknowledged=False, message=message)
        ParkedTask.give_back(SimpleNamespace(request=request, _cancel_timer=lambda: None), ())
    assert request.acknowledged
    assert "redelivers" in caplog.text
