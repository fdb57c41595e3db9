"""A worker that shuts down gives its waiting tasks back at once: it would not run them any more."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from tests.support.fixtures import sender
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, WAITING, await_log


@pytest.fixture
def send(broker, backend, queue):
    return partial(sender(WAITING, broker, backend), queue=queue)


@pytest.fixture
def start(start_fleet, broker, queue):
    """Starts a worker on the test's queue."""
    env = {"RLOCK_TEST_BROKER": broker.conf.broker_url}
    return partial(start_fleet, 1, queues=[queue], env=env)


def test_an_idle_worker_runs_them_while_the_other_one_still_shuts_down(
    start, send, name, hold, waiters, tell, records, count
):
    """Semantics 12: in both ack modes nothing is lost, and nothing runs twice."""
    other = f"{name}-other"
    with start(concurrency=2) as [stopping], hold(name) as lock:
        blocking = send("until_told", other)
        wait_until(lambda: records(other), timeout=SOON, what="an unrelated task to run")
        sent = [send(task, name) for task in ("work", "late") * 3]
        waiters.await_count(name, len(sent))
        with start() as [idle]:
            stopping.signal(signal.SIGTERM)
            for task in sent:
                await_log([idle], f"[{task.id}] received")
            lock.release()
            for task in sent:
                assert task.get(timeout=SOON) == task.id
            assert stopping.running
            tell(other)
            assert stopping.wait(SOON) == 0
            blocking.get(timeout=SOON)
            lock.acquire()  # to be released at the end of the block
            again = send("work", f"{name}-more")
            assert again.get(timeout=SOON) == again.id  # so what came back late would have run before
    assert count(name, "end") == {task.id: 1 for task in sent}
