"""Semantics 9: a broker that is away at the moment of a busy retry loses nothing."""

from __future__ import annotations

import time

import pytest

from tests.conftest import DEFAULT_KIND
from tests.support.processes import wait_until
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def broker(servers, proj):
    with Proxy(servers(DEFAULT_KIND).port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def fleet(start_fleet, broker):
    # What is not acknowledged when a connection breaks comes back after this time.
    options = {"visibility_timeout": 4, "unacked_restore_interval": 0.5, "unacked_restore_throttle": 1}
    conf = {"broker_transport_options": options, "task_publish_retry": False}
    with start_fleet(2, env={"RLOCK_TEST_BROKER": broker.url}, conf=conf) as workers:
        yield workers


@pytest.mark.parametrize("mode", ["early", "late"])
def test_the_task_runs_later_and_once(fleet, broker, proj, name, hold, records, mode):
    """Semantics 9: if republishing fails the message is not lost in either ack mode."""
    task = proj.waiting_then_again if mode == "early" else proj.waiting_then_again_late
    with hold(name):
        result = task.delay(name)
        started = f"[{result.id}] received"
        wait_until(lambda: any(started in worker.log for worker in fleet), timeout=20, what="the attempt")
        time.sleep(0.3)
        broker.refuse()
        failed = {"early": f"could not schedule {result.id}", "late": f"[{result.id}] reject requeue=True"}
        # redis-py tries for some seconds by itself before it gives up.
        wait_until(
            lambda: any(failed[mode] in worker.log for worker in fleet),
            timeout=60,
            what="the publish to fail",
        )
        assert records(name) == []
        broker.accept()
    assert result.get(timeout=60)["id"] == result.id
    time.sleep(6)  # longer than the visibility timeout
    assert [entry["event"] for entry in records(name)] == ["start", "end"]
