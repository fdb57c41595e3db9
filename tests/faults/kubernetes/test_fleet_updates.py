"""A fleet under load is updated, drained and scaled, as Kubernetes does it on purpose.

A worker that is killed during its shutdown can lose one message of a Redis broker: kombu has asked for the
next message, Redis hands it out, and no process notes it. So with Redis the fleet loses nothing while the
grace period is long enough, and at most one message for each killed pod otherwise. RabbitMQ loses nothing in
either case.
"""

from __future__ import annotations

import time

import pytest

from tests.faults.kubernetes.pod_fleet import EVENTS, SETTLE, EventRow

PODS = 3
TOO_SHORT = 2.0  # seconds of grace
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
with_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@with_redis
def test_a_rolling_update_loses_nothing(fleet, check):
    """Semantics 1, 5, 9 and 10: every run ends within the grace period."""
    fleet.deployment.scale(PODS)
    with fleet.under_load(long=3) as load:
        time.sleep(1)
        fleet.deployment.roll()
    assert len(fleet.deployment.gone) == PODS
    assert fleet.deployment.killed == 0
    check(load, "rolling update")


def test_a_rolling_update_with_too_short_a_grace_period(fleet, check):
    """Semantics 1, 7, 9 and 10: runs longer than the grace period are killed, and run again."""
    fleet.deployment.grace = TOO_SHORT
    fleet.deployment.scale(PODS)
    with fleet.under_load(long=5) as load:
        time.sleep(1)
        for _ in range(5):
            fleet.deployment.roll()
            if fleet.deployment.killed:
                break
    killed = fleet.deployment.killed
    assert killed > 0, "no run was long enough to be killed, so this test shows nothing"
    event = f"rolling update, runs exceed the grace period: {killed} killed"
    check(load, event, may_lose=killed if fleet.broker.kind == "redis" else 0)


@with_redis
def test_a_rolling_update_with_soft_shutdown_kills_no_pod(fleet, check):
    """Semantics 5 and 10: a run that does not end in time is given back, and its lock is free at once."""
    fleet.env = {"REMAP_SIGTERM": "SIGQUIT"}
    fleet.settings = {"worker_soft_shutdown_timeout": 1}
    fleet.deployment.scale(PODS)
    with fleet.under_load(long=5) as load:
        time.sleep(1)
        fleet.deployment.roll()
    assert fleet.deployment.killed == 0
    check(load, "rolling update, soft shutdown after 1 s")


def test_a_drained_node_loses_nothing(fleet, check):
    """Semantics 1, 5, 9 and 10: all pods of the fullest node are stopped at once."""
    fleet.deployment.scale(PODS + 1)  # on three nodes
    with fleet.under_load(long=3) as load:
        time.sleep(1)
        fleet.deployment.drain(max(fleet.nodes, key=lambda node: len(node.pods)))
        time.sleep(1)
    assert len(fleet.deployment.gone) == 2
    check(load, "drain of a node with 2 of 4 pods")


@with_redis
def test_scaling_up_and_down_loses_nothing(fleet, check):
    """Semantics 1, 9 and 10: two pods, eight, two."""
    fleet.deployment.scale(2)
    with fleet.under_load(long=3) as load:
        time.sleep(1)
        fleet.deployment.scale(8)
        time.sleep(1)
        fleet.deployment.scale(2)
    check(load, "scale 2 → 8 → 2")


@with_redis
def test_without_the_lock_the_journal_shows_overlaps(fleet):
    """The load does overlap, and the journal says so: the other tests here can fail."""
    fleet.settings = {"rlock_enabled": False}
    fleet.deployment.scale(2)
    with fleet.under_load(long=3) as load:
        time.sleep(3)
    report = load.report(settle=SETTLE)
    EVENTS.rows.append(EventRow("none, without the lock", fleet.broker.kind, report))
    assert report.overlaps > 0
