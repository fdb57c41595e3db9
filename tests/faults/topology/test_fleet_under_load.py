"""A fleet works while a fault happens to its lock server: the table in docs/deployments.md.

The broker is on another server, so that the fault hits only the locks.
"""

from __future__ import annotations

import contextlib
import time

import pytest
from celery import Celery

from tests.faults.load import TASKS, Journal, Load, long_keys, short_keys
from tests.faults.topology.costs import COSTS, CostRow
from tests.support.cluster import Migration
from tests.support.fleet import redelivered_after, running_fleet
from tests.support.processes import wait_until
from tests.support.sentinel import NAME
from tests.support.servers import DEFAULT_KIND, Server

WORKERS = 2
PAUSED = 3.0
AWAY = 2.0
TIME_TO_EXIT = 5.0
LEASE = 6.0  # longer than a failover takes; a lock that could not be released lasts so long
ENOUGH = 3  # new starts of a key show that work goes on
#: Tasks of 20 ms on three keys, and tasks of 1 s on two keys that are held all the time and have waiters.
STREAM = {"every": 0.04, "short": 0.02, "long": 1.0, "one_long_in": 12}

pytestmark = pytest.mark.slow


class Fleet:
    """Two workers and a Celery app that publishes to their queue."""

    def __init__(self, app, workers, queue, journal):
        self.app, self.workers, self.queue, self.journal = app, workers, queue, journal


@pytest.fixture(scope="module")
def start_fleet(fleet_redis, tmp_path_factory):
    """Starts two workers with these settings, which run until the end of the block."""

    @contextlib.contextmanager
    def start(queue, **conf):
        files = tmp_path_factory.mktemp("journal")
        conf = {
            "broker_url": fleet_redis.url,
            "result_backend": fleet_redis.url,
            "task_ignore_result": False,
            "rlock_ttl": LEASE,
            "rlock_lost": "warn",
            **conf,
        }
        environment = {"RLOCK_TEST_FILES": str(files)}
        options = {"conf": conf, "concurrency": 3, "queues": [queue]}
        with (
            running_fleet(TASKS, environment, WORKERS, **options) as workers,
            Celery("publisher", set_as_current=False) as app,
        ):
            app.conf.update({**conf, "result_backend": None})  # the test reads no results
            yield Fleet(app, workers, queue, Journal(files))

    return start


@pytest.fixture
def keys(name):
    return [*short_keys(name), *long_keys(name)]


@pytest.fixture
def cost_of(name):
    """Lets a fault happen in the middle of a stream of tasks, and reports what became of them."""

    def run(topology, what, fault, fleet):
        load = Load(fleet.app, fleet.queue, fleet.journal, name=name, **STREAM)
        load.start()
        try:
            load.await_starts(ENOUGH)
            fault()
            load.await_starts(ENOUGH)
        finally:
            load.end()
        report = load.report()
        COSTS.rows.append(CostRow(topology, what, report))
        print(report)
        return report

    return run


@pytest.fixture(scope="module")
def standalone():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def fleet_on_standalone(start_fleet, standalone):
    with start_fleet("standalone", rlock_url=standalone.url) as fleet:
        yield fleet


def pause(server, seconds=PAUSED):
    server.pause()
    time.sleep(seconds)
    server.resume()


def test_a_paused_server_costs_only_the_pause(fleet_on_standalone, standalone, cost_of):
    """Semantics 1 and 9: no run overlaps, and no task is lost."""
    cost = cost_of("standalone", f"paused for {PAUSED:.0f} s", lambda: pause(standalone), fleet_on_standalone)
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_a_server_that_restarts_empty_lets_at_most_one_more_run_in_for_each_key(
    fleet_on_standalone, standalone, cost_of, keys
):
    """Semantics 9: no task is lost, and no more runs overlap than locks were forgotten."""
    cost = cost_of("standalone", "restarted, memory empty", standalone.restart, fleet_on_standalone)
    assert cost.lost == 0
    assert cost.overlaps <= len(keys)


def be_away(server):
    server.kill()
    time.sleep(AWAY)
    server.restart()


def test_a_server_that_was_away_and_comes_back_empty_loses_no_task(
    fleet_on_standalone, standalone, cost_of, keys
):
    """Semantics 9."""
    what = f"dead for {AWAY:.0f} s, memory empty then"
    cost = cost_of("standalone", what, lambda: be_away(standalone), fleet_on_standalone)
    assert cost.lost == 0
    assert cost.overlaps <= len(keys)


@pytest.fixture(scope="module")
def fleet_behind_sentinel(start_fleet, sentinel_setup):
    with start_fleet("sentinel", rlock_url=sentinel_setup.url) as fleet:
        yield fleet


def test_a_killed_primary_behind_sentinel(sentinel, fleet_behind_sentinel, cost_of):
    """Semantics 1 and 9: a replicated lock is still held after the failover."""
    cost = cost_of("Sentinel", "primary kill -9", sentinel.kill_primary, fleet_behind_sentinel)
    assert (cost.overlaps, cost.lost) == (0, 0)


def freeze(sentinel):
    """Freeze the primary until the failover. Then it takes writes until the sentinels demote it."""
    old = sentinel.primary
    old.pause()
    sentinel.await_failover(old)
    old.resume()
    sentinel.await_calm()


FROZEN = "primary frozen, back after failover"


def test_a_frozen_primary_behind_sentinel_loses_no_task(sentinel, fleet_behind_sentinel, cost_of):
    """Semantics 9: runs may overlap, because clients that are still connected to the old primary use it."""
    cost = cost_of("Sentinel", FROZEN, lambda: freeze(sentinel), fleet_behind_sentinel)
    assert cost.lost == 0


def test_with_lock_replicas_no_run_holds_a_lock_of_the_old_primary(sentinel, start_fleet, cost_of):
    """Semantics 1 and 9: the old primary has no replica, so the locks that it grants do not count."""
    with start_fleet("replicated", rlock_url=sentinel.url, rlock_replicas=1) as fleet:
        cost = cost_of("Sentinel", f"{FROZEN}; `lock_replicas=1`", lambda: freeze(sentinel), fleet)
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_a_demoted_primary_behind_sentinel_loses_no_task(sentinel, fleet_behind_sentinel, cost_of):
    """Semantics 9: runs may overlap, because both servers take writes for about ten seconds."""

    def demote():
        sentinel.await_failover(sentinel.demote_primary())
        sentinel.await_calm()

    cost = cost_of("Sentinel", "SENTINEL FAILOVER", demote, fleet_behind_sentinel)
    assert cost.lost == 0


@pytest.fixture(scope="module")
def fleet_on_cluster(start_fleet, cluster_of_six):
    with start_fleet("cluster", rlock_url=cluster_of_six.url) as fleet:
        yield fleet


@pytest.fixture
def victim(cluster, keys):
    """The primary of a key with short tasks."""
    return cluster.primary_of(keys[0])


def test_a_killed_primary_of_a_cluster(cluster, victim, fleet_on_cluster, cost_of):
    """Semantics 1 and 9."""
    cost = cost_of("Cluster", "primary kill -9", victim.kill, fleet_on_cluster)
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_a_demoted_primary_of_a_cluster(cluster, victim, fleet_on_cluster, cost_of):
    """Semantics 1 and 9."""
    cost = cost_of("Cluster", "CLUSTER FAILOVER", lambda: cluster.demote(victim), fleet_on_cluster)
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_moving_slots_of_a_cluster(cluster, victim, keys, fleet_on_cluster, cost_of):
    """Semantics 1 and 9."""

    def move():
        for key in keys:
            migration = Migration(cluster, key)
            migration.begin()
            migration.move_keys()
            migration.end()

    cost = cost_of("Cluster", "slots of all keys moved", move, fleet_on_cluster)
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_a_frozen_primary_of_a_cluster(cluster, victim, keys, fleet_on_cluster, cost_of):
    """Semantics 1 and 9."""

    def freeze():
        victim.pause()
        time.sleep(PAUSED)
        victim.resume()
        cluster.await_failover(victim, keys[0])

    cost = cost_of("Cluster", FROZEN, freeze, fleet_on_cluster)
    assert cost.lost == 0
    # The primary may freeze before it has replicated its last write: then the new one grants that lock again.
    # What it answers when it is back is refused: see test_cluster.py.
    assert cost.overlaps <= 1


def restart_exited(workers):
    """Restart workers that exit, as Kubernetes would: kombu ends a worker whose Sentinel broker dies."""
    with contextlib.suppress(AssertionError):
        wait_until(
            lambda: not any(worker.running for worker in workers), timeout=TIME_TO_EXIT, what="their exit"
        )
    for worker in workers:
        if not worker.running:
            worker.restart()


def test_broker_backend_and_locks_behind_one_sentinel(sentinel, start_fleet, cost_of):
    """Semantics 1: without `rlock_url`. The broker itself may lose messages that it had not replicated."""
    conf = {"broker_url": sentinel.broker_url, "result_backend": sentinel.broker_url}
    conf |= redelivered_after(5)
    conf["broker_transport_options"]["master_name"] = NAME
    conf["result_backend_transport_options"] = {"master_name": NAME}

    def kill():
        sentinel.await_failover(sentinel.kill_primary())
        restart_exited(fleet.workers)

    with start_fleet("all", **conf) as fleet:
        cost = cost_of("Sentinel, broker and backend too", "primary kill -9", kill, fleet)
    assert cost.overlaps == 0
