"""Fleets of real workers that are treated as Kubernetes treats pods."""

from __future__ import annotations

import pytest

from tests.faults.kubernetes.pod_fleet import EVENTS, SETTLE, EventRow, PodFleet
from tests.support.servers import DEFAULT_KIND, Server


@pytest.fixture(scope="module")
def addresses():
    """The addresses that the module's Redis listens on in addition to loopback."""
    return ()


@pytest.fixture(scope="module")
def fleet_redis(addresses):
    """The Redis that has the locks, and the messages too when the broker is Redis."""
    with Server.start(DEFAULT_KIND, bind=("127.0.0.1", *addresses), protected_mode="no") as server:
        yield server


@pytest.fixture
def fleet(broker, fleet_redis, tmp_path):
    fleet = PodFleet(broker, fleet_redis, tmp_path)
    yield fleet
    fleet.deployment.stop()


@pytest.fixture
def check(fleet):
    """Asserts that no run of a load overlapped, and that no more was lost or repeated than stated."""

    def check(load, event, *, may_lose=0, may_repeat=0):
        report = load.report(within=20 if may_lose else 60, settle=SETTLE)
        EVENTS.rows.append(EventRow(event, fleet.broker.kind, report))
        if report.overlaps or report.lost > may_lose or report.completed_twice > may_repeat:
            fleet.show_logs()
        assert report.overlaps == 0
        assert report.lost <= may_lose, load.lost()
        assert report.completed_twice <= may_repeat

    return check
