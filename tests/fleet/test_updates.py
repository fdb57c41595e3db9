"""What Kubernetes does on purpose: rolling update, drain, scaling; under load, with its signals.

A worker that is killed while it shuts down can lose a message of a Redis broker: kombu has asked for the next
one, Redis hands it out, nobody notes it. So with Redis nothing may be lost while the grace period is enough,
and no more than pods were killed when it is not. RabbitMQ loses nothing in either case.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.fleet.conftest import TABLE

PODS = 3
TOO_SHORT = 2.0  # seconds of grace
pytestmark = pytest.mark.timeout(180)
with_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@with_redis
def test_a_rolling_update_loses_nothing(cluster, report_of):
    """Semantics 1, 5, 9 and 10: every run ends within the grace period."""
    cluster.deployment.scale(PODS)
    with cluster.under_load(long=3) as load:
        time.sleep(1)
        cluster.deployment.roll()
    assert len(cluster.deployment.gone) == PODS
    assert cluster.deployment.killed == 0
    report_of(load, "rolling update")


def test_a_rolling_update_with_too_short_a_grace_period(cluster, report_of):
    """Semantics 1, 7, 9 and 10: runs that are longer than the grace period are killed, and run again."""
    if cluster.broker.kind == "redis" and not os.environ.get(TABLE):
        pytest.skip("slow, and about kombu more than about locks: make fleet has it")
    cluster.deployment.grace = TOO_SHORT
    cluster.deployment.scale(PODS)
    with cluster.under_load(long=5) as load:
        time.sleep(1)
        for _ in range(5):
            cluster.deployment.roll()
            if cluster.deployment.killed:
                break
    killed = cluster.deployment.killed
    assert killed > 0, "no run was long enough to be killed: this proves nothing"
    event = f"rolling update, runs exceed the grace period: {killed} killed"
    report_of(load, event, may_lose=killed if cluster.broker.kind == "redis" else 0)


@with_redis
def test_a_rolling_update_with_soft_shutdown_kills_nobody(cluster, report_of):
    """Semantics 5 and 10: what does not end in time is given back, its lock free at once."""
    cluster.env = {"REMAP_SIGTERM": "SIGQUIT"}
    cluster.settings = {"worker_soft_shutdown_timeout": 1}
    cluster.deployment.scale(PODS)
    with cluster.under_load(long=5) as load:
        time.sleep(1)
        cluster.deployment.roll()
    assert cluster.deployment.killed == 0
    report_of(load, "rolling update, soft shutdown after 1 s")


def test_a_node_is_drained(cluster, report_of):
    """Semantics 1, 5, 9 and 10: all pods of the fullest node go at once."""
    cluster.deployment.scale(PODS + 1)  # on three nodes
    with cluster.under_load(long=3) as load:
        time.sleep(1)
        cluster.deployment.drain(max(cluster.nodes, key=lambda node: len(node.pods)))
        time.sleep(1)
    assert len(cluster.deployment.gone) == 2
    report_of(load, "drain of a node with 2 of 4 pods")


@with_redis
def test_the_fleet_is_scaled_up_and_down(cluster, report_of):
    """Semantics 1, 9 and 10: two pods, eight, two."""
    cluster.deployment.scale(2)
    with cluster.under_load(long=3) as load:
        time.sleep(1)
        cluster.deployment.scale(8)
        time.sleep(1)
        cluster.deployment.scale(2)
    report_of(load, "scale 2 → 8 → 2")


@with_redis
def test_without_the_lock_the_witness_sees_overlaps(cluster, reports):
    """The load is one that overlaps, and the journal tells."""
    cluster.settings = {"rlock_enabled": False}
    cluster.deployment.scale(2)
    with cluster.under_load(long=3) as load:
        time.sleep(3)
    report = load.report("none, without the lock", cluster.broker.kind)
    reports.append(report)
    assert report.overlaps > 0
