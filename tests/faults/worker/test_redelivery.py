"""The broker delivers a message again while its first run is under way: each task id completes once.

Redis redelivers when a run takes longer than the visibility timeout, RabbitMQ when the consumer's connection
is cut. Twenty tasks run at a time, each on its own key and with every `lock_busy` in turn.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from celery import states

from tests.support import outages
from tests.support.fleet import deliveries, inspect, redelivered_after
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

TIMES = 20
TASKS = ["redelivered_retry", "redelivered_skip", "redelivered_fail"]
FINAL = {"success": states.SUCCESS, "failure": states.FAILURE, "retry": states.SUCCESS}


class RedeliveringFleet:
    """A fleet whose broker can be made to redeliver all unacknowledged messages."""

    def __init__(self, fleet, queue, broker, proxy, store):
        self.fleet, self._queue = fleet, queue
        self._broker, self._proxy, self._store = broker, proxy, store

    def force_redelivery(self):
        """Cut the connections to RabbitMQ. Redis redelivers on its own, after the visibility timeout."""
        if self._broker.kind == "rabbitmq":
            self._proxy.cut()

    def without_broker(self):
        """A block in which the workers cannot reach their broker."""
        return outages.refused(self._proxy)

    @contextmanager
    def acknowledgements_lost(self):
        """A block in which what the workers send is accepted, and never reaches the broker."""
        with outages.frozen(self._proxy):
            yield
            self._proxy.cut()

    def deliveries(self):
        """How often the workers received each task id."""
        return deliveries(self.fleet)

    def lines(self, *words):
        """The lines of the workers' logs that contain one of the words, oldest first."""
        lines = [line[:200] for worker in self.fleet for line in worker.log.splitlines()]
        return sorted(line for line in lines if any(word in line for word in words))

    def await_rest(self):
        """Return when no message runs, waits or lacks its acknowledgement."""
        wait_until(self._at_rest, timeout=40, what="the fleet to be at rest", every=0.2)

    def _at_rest(self):
        replies = [inspect(self._broker, self.fleet, what) for what in ("active", "reserved", "scheduled")]
        return not any(any(reply.values()) for reply in replies) and not self._left_in_broker()

    def _left_in_broker(self):
        if self._broker.kind == "redis":
            return self._store.hlen("unacked") or self._store.llen(self._queue)
        with self._broker.connection_for_write() as connection:
            return connection.default_channel.queue_declare(self._queue, passive=True).message_count


@pytest.fixture(scope="module")
def redelivering(start_fleet, broker, store):
    """Starts workers that reach their broker through a proxy, and get unacknowledged messages again."""

    @contextmanager
    def start(count, queue, *, conf=None, **options):
        with Proxy(broker.port, protocol="raw") as proxy:
            url = broker.conf.broker_url.replace(str(broker.port), str(proxy.port))
            # Otherwise Celery lowers the prefetch count after a lost connection, and not all tasks would run.
            conf = {"worker_enable_prefetch_count_reduction": False, **(conf or {})}
            conf |= redelivered_after(2, broker.kind)
            with start_fleet(
                count, env={"RLOCK_TEST_BROKER": url}, conf=conf, queues=[queue], **options
            ) as fleet:
                yield RedeliveringFleet(fleet, queue, broker, proxy, store)

    return start


@pytest.fixture(scope="module")
def fleet(redelivering):
    with redelivering(2, "redelivery", concurrency=TIMES * 6 // 10) as fleet:
        yield fleet


@pytest.fixture
def send_each(send, name):
    """Publishes twenty tasks on twenty keys, with every `lock_busy` in turn and runs of different lengths."""

    def publish(how, shortest, longest):
        step = (longest - shortest) / TIMES
        return {
            f"{name}-{turn}": send(
                TASKS[turn % len(TASKS)], f"{name}-{turn}", how, shortest + turn * step, queue="redelivery"
            )
            for turn in range(TIMES)
        }

    return publish


def await_starts(records, sent):
    wait_until(lambda: all(records(key) for key in sent), timeout=30, what=f"all of {list(sent)} to run")


def story(fleet, records, key):
    """For the message of a failed assertion: what happened when, and what the workers logged."""
    entries = [f"{entry['at']:.3f} {entry['event']} {entry['retries']}" for entry in records(key)]
    return "\n".join(
        ["", *entries, *fleet.lines(records(key)[0]["id"], "Connected to", "onnection to broker")]
    )


def states_until_ended(count, sent):
    """The states that were stored for each task until its first run ended."""
    seen = {key: set() for key in sent}

    def all_ended():
        for key, result in sent.items():
            state = result.state
            seen[key] |= set() if count(key, "end") else {state}
        return all(count(key, "end") for key in sent)

    wait_until(all_ended, timeout=40, what="all first runs to end", every=0.1)
    return seen


def runs_of(records, key, event):
    """How often the event was recorded, by the number of the task's own retry."""
    return Counter(entry["retries"] for entry in records(key, event))


@pytest.mark.parametrize(
    "how",
    [
        "success",
        pytest.param("failure", marks=pytest.mark.slow),
        pytest.param("retry", marks=pytest.mark.slow),
    ],
)
def test_a_redelivered_message_is_dropped_when_the_first_run_ends(fleet, send_each, records, count, how):
    """Semantics 10: with every `lock_busy`. The task's own retry is no redelivery and always runs."""
    sent = send_each(how, 4, 6)
    await_starts(records, sent)
    fleet.force_redelivery()
    seen = states_until_ended(count, sent)
    for result in sent.values():
        wait_until(lambda result=result: result.state == FINAL[how], timeout=20, what=f"{how} to be stored")
    fleet.await_rest()
    deliveries = fleet.deliveries()
    expected = {0: 1, 1: 1} if how == "retry" else {0: 1}
    again = [result for result in sent.values() if deliveries[result.id] > len(expected)]
    assert len(again) >= TIMES / 5, "too few messages were redelivered, so this test shows nothing"
    for key, result in sent.items():
        assert runs_of(records, key, "start") == runs_of(records, key, "end") == expected, story(
            fleet, records, key
        )
        assert not count(key, "overlap")
        assert seen[key] <= {states.PENDING}, "a redelivered message changed the state of a running task"
        assert result.state == FINAL[how]


@pytest.mark.slow
def test_a_message_redelivered_as_the_first_run_ends_completes_once(fleet, send_each, records, count, broker):
    """Semantics 10: runs end shortly before, at, and shortly after the redelivery."""
    redelivery = 1.0 if broker.kind == "rabbitmq" else 2.0
    sent = send_each("success", redelivery - 0.5, redelivery + 1.5)
    await_starts(records, sent)
    if broker.kind == "rabbitmq":
        time.sleep(redelivery - 0.3)
        fleet.force_redelivery()
    for result in sent.values():
        assert result.get(timeout=20) == ["success", 0]
    fleet.await_rest()
    twice = [key for key, result in sent.items() if count(key, "end") != {result.id: 1}]
    assert not twice, story(fleet, records, twice[0])


@pytest.mark.slow
def test_runs_that_end_while_their_worker_has_no_broker_complete_once(fleet, send_each, records, count):
    """Semantics 10: the worker cannot acknowledge them, so the broker redelivers them."""
    sent = send_each("success", 1, 4)
    await_starts(records, sent)
    with fleet.without_broker():
        time.sleep(3)
    for result in sent.values():
        assert result.get(timeout=20) == ["success", 0]
    fleet.await_rest()
    twice = [key for key, result in sent.items() if count(key, "end") != {result.id: 1}]
    assert not twice, story(fleet, records, twice[0])


@pytest.mark.slow
def test_runs_whose_acknowledgement_never_reached_the_broker_complete_once(
    fleet, send_each, records, count, broker
):
    """Semantics 10: the worker has sent the acknowledgement before it notices that the connection is lost.

    With Redis the worker sends it again over its next connection.
    """
    sent = send_each("success", 1, 2)
    await_starts(records, sent)
    with fleet.acknowledgements_lost():
        for result in sent.values():
            assert result.get(timeout=20) == ["success", 0]
        time.sleep(0.3)
    fleet.await_rest()
    if broker.kind == "rabbitmq":
        assert max(fleet.deliveries()[result.id] for result in sent.values()) > 1, "none was redelivered"
    twice = [key for key, result in sent.items() if count(key, "end") != {result.id: 1}]
    assert not twice, story(fleet, records, twice[0])


def test_a_redelivered_message_runs_when_the_first_run_died(fleet, send_each, records, count):
    """Semantics 10: no task is lost."""
    sent = send_each("success", 60, 61)
    await_starts(records, sent)
    pids = [records(key)[0]["pid"] for key in sent]
    fleet.force_redelivery()
    redelivered = lambda: all(fleet.deliveries()[result.id] > 1 for result in sent.values())  # noqa: E731
    wait_until(redelivered, timeout=20, what="the redelivery of all")
    assert not any(count(key, "end") for key in sent)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for result in sent.values():
        wait_until(
            lambda result=result: result.state == states.SUCCESS,
            timeout=25,
            what="the redelivered message to run",
        )
    fleet.await_rest()
    for key, result in sent.items():
        assert count(key, "start") == {result.id: 2}
        assert count(key, "end") == {result.id: 1}
        assert not count(key, "overlap")


@pytest.mark.slow
def test_messages_redelivered_to_the_worker_that_runs_them_complete_once(
    redelivering, send, name, queue, records, count
):
    """Semantics 10: one child and a prefetch of 4, so redelivered messages wait in the same worker."""
    with redelivering(1, queue, concurrency=1, conf={"worker_prefetch_multiplier": 4}) as fleet:
        keys = [f"{name}-{turn}" for turn in range(4)]
        sent = {key: send("redelivered_retry", key, "success", 2.6, queue=queue) for key in keys}
        wait_until(lambda: any(records(key) for key in sent), timeout=20, what="the first to run")
        time.sleep(0.5)
        fleet.force_redelivery()
        for result in sent.values():
            assert result.get(timeout=40) == ["success", 0]
        fleet.await_rest()
        assert max(fleet.deliveries().values()) > 1
        for key, result in sent.items():
            assert count(key, "end") == {result.id: 1}
            assert not count(key, "overlap")


@pytest.mark.slow
def test_a_dropped_redelivery_keeps_the_state_of_a_failed_run(
    redelivering, send, name, queue, records, count
):
    """Semantics 10: with `task_track_started` Celery itself would store STARTED for the redelivery."""
    with redelivering(1, queue, concurrency=2, conf={"task_track_started": True}) as fleet:
        result = send("redelivered_retry", name, "failure", 4, queue=queue)
        wait_until(lambda: records(name), timeout=20, what="it to run")
        fleet.force_redelivery()
        wait_until(lambda: fleet.deliveries()[result.id] > 1, timeout=10, what="the redelivery")
        with pytest.raises(ValueError, match="failure"):
            result.get(timeout=20)
        fleet.await_rest()
        assert result.state == states.FAILURE
    assert count(name, "start") == {result.id: 1}
