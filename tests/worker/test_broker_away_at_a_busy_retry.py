"""Semantics 9: a broker that is away at the moment of a busy retry loses no task."""

from __future__ import annotations

import time

import pytest

from tests.support.fleet import redelivered_after
from tests.support.outages import refused
from tests.support.proxy import Proxy
from tests.worker.awaiting import await_log

QUEUE = "broker-away"
#: The Redis broker redelivers a message that was not acknowledged when its connection broke.
REDELIVERED_AFTER = 2


@pytest.fixture(scope="module")
def broker_proxy(fleet_redis):
    """The workers reach the broker through this proxy only."""
    with Proxy(fleet_redis.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def fleet(start_fleet, broker_proxy):
    conf = {**redelivered_after(REDELIVERED_AFTER), "task_publish_retry": False}
    env = {"RLOCK_TEST_BROKER": broker_proxy.url}
    with start_fleet(2, queues=[QUEUE], env=env, conf=conf) as workers:
        yield workers


def test_the_task_runs_later_and_once(fleet, broker_proxy, proj, name, hold, records):
    """Semantics 9: if republishing fails the message is not lost in either ack mode.

    Both modes share one outage, because redis-py tries for some seconds by itself before it gives up.
    """
    early, late = f"{name}-early", f"{name}-late"
    with hold(early), hold(late):
        acked_early = proj.waiting_then_again.apply_async((early,), queue=QUEUE)
        acked_late = proj.waiting_then_again_late.apply_async((late,), queue=QUEUE)
        for result in (acked_early, acked_late):
            await_log(fleet, f"[{result.id}] received")
        time.sleep(0.3)
        with refused(broker_proxy):
            await_log(fleet, f"could not publish task {acked_early.id} again", timeout=60)
            await_log(fleet, f"[{acked_late.id}] reject requeue=True", timeout=60)
            assert records(early) == records(late) == []
    for result in (acked_early, acked_late):
        assert result.get(timeout=60)["id"] == result.id
    time.sleep(REDELIVERED_AFTER + 1.5)
    for key in (early, late):
        assert [entry["event"] for entry in records(key)] == ["start", "end"]
