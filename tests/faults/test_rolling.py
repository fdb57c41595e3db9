"""A fleet under load is rolled as Kubernetes does it: SIGTERM, a grace period, SIGKILL, a new worker.

With Redis as the broker kombu itself loses a message that a worker had taken from the list and not yet noted
as unacknowledged when it was killed. So the strict claim, 0 lost, is made with RabbitMQ; where there is only
Redis no more may be lost than workers were killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections import Counter

import pytest

from tests.faults.fleet import delivered_again_after, make_worker, show
from tests.support.processes import wait_until
from tests.support.rabbit import Rabbit

WORKERS = 6
KEYS = 5
GRACE = 2.0
EVERY = 0.08  # a new task
LONG = 6.0  # longer than the grace period: such a run is killed when its worker's turn comes
LONG_EACH = 25  # tasks


class Stream(threading.Thread):
    """Publishes a task now and then, on one key after the other, until it is told to end."""

    def __init__(self, send, name, queue):
        super().__init__(daemon=True)
        self.sent = {}
        self._send, self._name, self._queue = send, name, queue
        self._over = threading.Event()

    def run(self):
        for number in itertools.count():
            if self._over.wait(EVERY):
                return
            # The long ones have keys of their own: they would keep the others waiting.
            round_, place = divmod(number, LONG_EACH)
            long = place == LONG_EACH // 2
            key = f"{self._name}-{round_ % 3 if long else 3 + number % (KEYS - 3)}"
            result = self._send("late", key, LONG if long else 0.05, queue=self._queue)
            self.sent[result.id] = key

    def end(self):
        self._over.set()
        self.join()


@pytest.fixture
def fleet(environment, broker, queue):
    """Six workers, each with the means to make its successor."""
    conf = delivered_again_after(LONG + 3, broker)
    make = lambda: make_worker(environment, conf=conf, concurrency=1, queues=[queue])  # noqa: E731
    workers = [make() for _ in range(WORKERS)]
    for worker in workers:
        worker.launch()
    for worker in workers:
        worker.await_ready()
    yield workers, make
    for worker in workers:
        worker.stop(timeout=0)


def replace(workers, place, make):
    """What the kubelet does to a pod, and the new pod is ready before the next one's turn; was it killed?"""
    old = workers[place]
    old.signal(signal.SIGTERM)
    killed = False
    with contextlib.suppress(subprocess.TimeoutExpired):
        old.wait(GRACE)
    if old.running:
        os.killpg(old.pid, signal.SIGKILL)
        old.wait()
        killed = True
    workers[place] = make()
    workers[place].launch()
    workers[place].await_ready()
    return killed


@pytest.mark.timeout(240)
@pytest.mark.parametrize("broker", ["rabbitmq" if Rabbit.available() else "redis"], indirect=True)
def test_a_fleet_is_rolled_under_load(fleet, send, broker, name, queue, records):
    """Semantics 1, 7, 9 and 10: 0 overlaps, 0 lost, 0 run twice to completion."""
    workers, make = fleet
    gone = list(workers)
    stream = Stream(send, name, queue)
    stream.start()
    time.sleep(1)
    killed = sum(replace(workers, place, make) for place in range(WORKERS))
    stream.end()
    keys = [f"{name}-{number}" for number in range(KEYS)]

    def completed():
        return Counter(entry["id"] for key in keys for entry in records(key) if entry["event"] == "end")

    def lost():
        return set(stream.sent) - set(completed())

    try:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not lost(), timeout=90, what="all to run", every=0.2)
        time.sleep(2)  # whatever would run a second time has the time to do it
        overlaps = [entry for key in keys for entry in records(key) if entry["event"] == "overlap"]
        twice = {task_id: times for task_id, times in completed().items() if times > 1}
        print(f"{len(stream.sent)} tasks, {killed} of {WORKERS} workers killed, lost {lost()}, twice {twice}")
        assert killed > 0, "no run was long enough to be killed: this proves nothing"
        assert not overlaps
        assert not twice
        assert len(lost()) <= (killed if broker.kind == "redis" else 0)
    except AssertionError:
        show([*gone, *workers])
        raise
