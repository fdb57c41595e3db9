"""The same message delivered again while its first run is under way: one completed run for each task id.

Redis delivers again when a run is longer than the visibility timeout, RabbitMQ when the consumer's connection
is cut. Twenty runs at a time, each on a key of its own and with every `lock_busy` in turn.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from celery import states

from tests.faults.fleet import delivered_again_after
from tests.support.daemon import show
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

TIMES = 20
TASKS = ["delivered_twice", "delivered_twice_or_skipped", "delivered_twice_or_failed"]
FINAL = {"success": states.SUCCESS, "failure": states.FAILURE, "retry": states.SUCCESS}


class Redelivering:
    """A fleet and a way to have all its unacknowledged messages delivered again."""

    def __init__(self, fleet, queue, broker, proxy, store):
        self.fleet, self._queue = fleet, queue
        self._broker, self._proxy, self._store = broker, proxy, store

    def provoke(self):
        """Redis needs only time."""
        if self._broker.kind == "rabbitmq":
            for connection in list(self._proxy._connections):
                connection.end()

    @contextmanager
    def without_broker(self):
        self._proxy.refuse()
        yield
        self._proxy.accept()

    def deliveries(self):
        """How often each task id was received."""
        log = "".join(worker.log for worker in self.fleet)
        return Counter(re.findall(r"Task [\w.]+\[([\w-]+)\] received", log))

    def lines(self, *words):
        """Of the workers' logs, in the order of time, those that have one of the words."""
        lines = [line[:200] for worker in self.fleet for line in worker.log.splitlines()]
        return sorted(line for line in lines if any(word in line for word in words))

    def await_rest(self):
        """Nothing runs, waits or is still to be acknowledged."""
        wait_until(self._at_rest, timeout=40, what="the fleet to be at rest", every=0.2)

    def _at_rest(self):
        names = [worker.nodename for worker in self.fleet]
        inspect = self._broker.control.inspect(destination=names, timeout=5, limit=len(names))
        replies = [inspect.active(), inspect.reserved(), inspect.scheduled()]
        idle = all(reply and len(reply) == len(names) and not any(reply.values()) for reply in replies)
        return idle and not self._left_in_broker()

    def _left_in_broker(self):
        if self._broker.kind == "redis":
            return self._store.hlen("unacked") or self._store.llen(self._queue)
        with self._broker.connection_for_write() as connection:
            return connection.default_channel.queue_declare(self._queue, passive=True).message_count


@pytest.fixture(scope="module")
def redelivering(start_fleet, broker, store):
    @contextmanager
    def start(count, queue, *, conf=None, **options):
        with Proxy(broker.port, protocol="raw") as proxy:
            url = broker.conf.broker_url.replace(str(broker.port), str(proxy.port))
            # Celery lowers the prefetch count when it loses its broker: then not all of a test's tasks run.
            conf = {"worker_enable_prefetch_count_reduction": False, **(conf or {})}
            conf |= delivered_again_after(2, broker)
            with start_fleet(
                count, env={"RLOCK_TEST_BROKER": url}, conf=conf, queues=[queue], **options
            ) as fleet:
                yield Redelivering(fleet, queue, broker, proxy, store)

    return start


@pytest.fixture(scope="module")
def fleet(redelivering):
    with redelivering(2, "redelivery", concurrency=TIMES * 6 // 10) as fleet:
        yield fleet


@pytest.fixture
def send_each(send, name):
    """Twenty tasks on twenty keys, with every `lock_busy` in turn; the runs' lengths differ."""

    def publish(how, shortest, longest):
        step = (longest - shortest) / TIMES
        return {
            f"{name}-{turn}": send(
                TASKS[turn % len(TASKS)], f"{name}-{turn}", how, shortest + turn * step, queue="redelivery"
            )
            for turn in range(TIMES)
        }

    return publish


def await_starts(fleet, records, sent):
    try:
        wait_until(lambda: all(records(key) for key in sent), timeout=30, what="all to run")
    except AssertionError:
        print([key for key in sent if not records(key)])
        show(fleet.fleet)
        raise


def story(fleet, records, key):
    """For the message of a failure: what happened when, and what the workers said of it."""
    entries = [f"{entry['at']:.3f} {entry['event']} {entry['retries']}" for entry in records(key)]
    return "\n".join(
        ["", *entries, *fleet.lines(records(key)[0]["id"], "Connected to", "onnection to broker")]
    )


def states_until_ended(count, sent):
    """Every state that was stored for each, up to the end of its first run."""
    seen = {key: set() for key in sent}

    def all_ended():
        for key, result in sent.items():
            state = result.state
            seen[key] |= set() if count(key, "end") else {state}
        return all(count(key, "end") for key in sent)

    wait_until(all_ended, timeout=40, what="all first runs to end", every=0.1)
    return seen


def runs_of(records, key, event):
    """How often, for each of the task's own retries."""
    return Counter(entry["retries"] for entry in records(key) if entry["event"] == event)


@pytest.mark.parametrize("how", ["success", "failure", "retry"])
def test_a_copy_is_dropped_when_the_first_run_ends(fleet, send_each, records, count, how):
    """Semantics 10: whatever `lock_busy` says; the user's own retry is no copy and always runs."""
    sent = send_each(how, 5, 7)
    await_starts(fleet, records, sent)
    fleet.provoke()
    seen = states_until_ended(count, sent)
    for result in sent.values():
        wait_until(lambda result=result: result.state == FINAL[how], timeout=20, what=f"{how} to be stored")
    fleet.await_rest()
    deliveries = fleet.deliveries()
    expected = {0: 1, 1: 1} if how == "retry" else {0: 1}
    again = [result for result in sent.values() if deliveries[result.id] > len(expected)]
    assert len(again) >= TIMES / 5, "too few were delivered again to prove anything"
    for key, result in sent.items():
        assert runs_of(records, key, "start") == runs_of(records, key, "end") == expected, story(
            fleet, records, key
        )
        assert not count(key, "overlap")
        assert seen[key] <= {states.PENDING}, "a copy touched the state of a task that was running"
        assert result.state == FINAL[how]


def test_a_copy_that_arrives_as_the_first_run_ends(fleet, send_each, records, count, broker):
    """Semantics 10: runs that end shortly before, at, and shortly after the redelivery."""
    redelivery = 1.0 if broker.kind == "rabbitmq" else 2.0
    sent = send_each("success", redelivery - 0.5, redelivery + 1.5)
    await_starts(fleet, records, sent)
    if broker.kind == "rabbitmq":
        time.sleep(redelivery - 0.3)
        fleet.provoke()
    for result in sent.values():
        assert result.get(timeout=20) == ["success", 0]
    fleet.await_rest()
    twice = [key for key, result in sent.items() if count(key, "end") != {result.id: 1}]
    assert not twice, story(fleet, records, twice[0])


def test_runs_that_end_while_their_worker_has_no_broker(fleet, send_each, records, count):
    """Semantics 10: they cannot be acknowledged, and come back when the worker does."""
    sent = send_each("success", 1, 4)
    await_starts(fleet, records, sent)
    with fleet.without_broker():
        time.sleep(3)
    for result in sent.values():
        assert result.get(timeout=20) == ["success", 0]
    fleet.await_rest()
    twice = [key for key, result in sent.items() if count(key, "end") != {result.id: 1}]
    assert not twice, story(fleet, records, twice[0])


def test_a_copy_runs_when_the_first_run_died(fleet, send_each, records, count):
    """Semantics 10: none lost."""
    sent = send_each("success", 60, 61)
    await_starts(fleet, records, sent)
    pids = [records(key)[0]["pid"] for key in sent]
    fleet.provoke()
    delivered_again = lambda: all(fleet.deliveries()[result.id] > 1 for result in sent.values())  # noqa: E731
    wait_until(delivered_again, timeout=20, what="all to be delivered again")
    assert not any(count(key, "end") for key in sent)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for result in sent.values():
        wait_until(lambda result=result: result.state == states.SUCCESS, timeout=25, what="the copy to run")
    fleet.await_rest()
    for key, result in sent.items():
        assert count(key, "start") == {result.id: 2}
        assert count(key, "end") == {result.id: 1}
        assert not count(key, "overlap")


def test_copies_behind_their_first_run_in_one_worker(redelivering, send, name, queue, records, count):
    """Semantics 10: one child, prefetch 4: copies lie in the same worker until the first run has ended."""
    with redelivering(1, queue, concurrency=1, conf={"worker_prefetch_multiplier": 4}) as fleet:
        sent = {f"{name}-{turn}": send("delivered_twice", f"{name}-{turn}", "success", 2.6, queue=queue)
                for turn in range(4)}  # fmt: skip
        wait_until(lambda: any(records(key) for key in sent), timeout=20, what="the first to run")
        time.sleep(0.5)
        fleet.provoke()
        for result in sent.values():
            assert result.get(timeout=40) == ["success", 0]
        fleet.await_rest()
        assert max(fleet.deliveries().values()) > 1
        for key, result in sent.items():
            assert count(key, "end") == {result.id: 1}
            assert not count(key, "overlap")


def test_a_dropped_copy_leaves_the_end_of_a_failed_run(redelivering, send, name, queue, records, count):
    """Semantics 10: with `task_track_started` Celery itself would store STARTED for the copy, for ever."""
    with redelivering(1, queue, concurrency=2, conf={"task_track_started": True}) as fleet:
        result = send("delivered_twice", name, "failure", 4, queue=queue)
        wait_until(lambda: records(name), timeout=20, what="it to run")
        fleet.provoke()
        wait_until(lambda: fleet.deliveries()[result.id] > 1, timeout=10, what="the copy")
        with pytest.raises(ValueError, match="failure"):
            result.get(timeout=20)
        fleet.await_rest()
        assert result.state == states.FAILURE
    assert count(name, "start") == {result.id: 1}
