"""RabbitMQ itself delays what is sent to a quorum queue: nothing lies in the worker to be woken."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from tests.support.processes import wait_until
from tests.waking.fleet import SOON, sender

QUEUE = "quorum"
CONCURRENCY = 2
BACKOFF = 1  # of `soon_again`
CONF = {
    "task_default_queue": QUEUE,
    "task_default_queue_type": "quorum",
    "task_default_exchange": "quorum-topic",
    "task_default_exchange_type": "topic",
}
SAID = "waiting tasks are not woken, their backoff alone serves: RabbitMQ itself delays"


@pytest.fixture(scope="module")
def app(rabbit):
    with Celery("client", broker=rabbit.url, set_as_current=False) as client:
        client.conf.update(CONF)
        yield client


@pytest.fixture(scope="module")
def send(app, backend):
    return sender(app, backend)


@pytest.fixture(scope="module")
def worker(rabbit, start_fleet):
    with start_fleet(1, broker=rabbit.url, conf=CONF, queues=[QUEUE], concurrency=CONCURRENCY) as [worker]:
        yield worker


def await_attempts(worker, sent, how_many):
    """Each has found the lock busy so often."""

    def enough():
        log = worker.log
        return all(log.count(f"[{task.id}] retry: lock") >= how_many for task in sent)

    wait_until(enough, timeout=SOON, what=f"{how_many} attempts of each")


def test_a_worker_says_once_why_it_wakes_nobody(worker):
    assert worker.log.count(SAID) == 1


def test_a_waiter_is_served_by_its_backoff(worker, send, name, hold, waiters, count):
    """It comes again and again while the lock is held, and has no place that it would have to give up."""
    with hold(name):
        sent = [send("soon_again", name, queue=QUEUE) for _ in range(3)]
        attempts = [f"[{task.id}] retry: lock" for task in sent]
        wait_until(
            lambda: all(worker.log.count(text) > 1 for text in attempts), timeout=SOON, what="attempts"
        )
        assert not waiters(name)
    for task in sent:
        assert task.get(timeout=SOON) == task.id
    assert count(name, "end") == {task.id: 1 for task in sent}


def test_waiters_do_not_keep_others_out_of_the_worker(worker, send, name, hold):
    """The prefetch count of such a worker is fixed: what lay in it waiting would be in the way."""
    with hold(name):
        sent = [send("soon_again", name, queue=QUEUE) for _ in range(2 * CONCURRENCY)]
        await_attempts(worker, sent, 1)
        time.sleep(2 * BACKOFF)
        other = send("work", f"{name}-other", queue=QUEUE)
        assert other.get(timeout=SOON) == other.id
    for task in sent:
        assert task.get(timeout=SOON) == task.id
