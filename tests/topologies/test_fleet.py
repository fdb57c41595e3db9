"""Workers under load go through what happens to their lock server: the table in docs/deployments.md.

The broker is a server of its own, so that only the locks are hit. Some of the rows are measured by
`make topologies` alone.
"""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from celery import Celery

from tests.conftest import DEFAULT_KIND
from tests.faults.fleet import make_worker
from tests.support.cluster import Migration
from tests.support.daemon import running
from tests.support.processes import wait_until
from tests.support.sentinel import NAME
from tests.support.servers import Server
from tests.topologies.fleet import LEASE, LONG_KEYS, PAGE, PROJ, SHORT_KEYS, Cost, cost_of

WORKERS = 2
PAUSED = 3.0
AWAY = 2.0
TIME_TO_DIE = 5.0

for_the_page = pytest.mark.skipif(PAGE not in os.environ, reason="make topologies measures it")


@pytest.fixture(scope="module")
def store():
    """Broker, backend and record of what ran: no fault touches it."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def start_fleet(store, tmp_path_factory):
    """Starts two workers with these settings; they are gone at the end of the block."""

    @contextlib.contextmanager
    def start(queue, **conf):
        files = tmp_path_factory.mktemp("alone")
        environment = {"RLOCK_TEST_STORE": store.url, "RLOCK_TEST_FILES": str(files)}
        conf = {"broker_url": store.url, "result_backend": store.url, "rlock_ttl": LEASE, **conf}
        options = {"conf": conf, "app": PROJ, "concurrency": 3, "queues": [queue]}
        fleet = [make_worker(environment, **options) for _ in range(WORKERS)]
        with running(fleet), Celery("client", set_as_current=False) as client:
            client.conf.update({**conf, "result_backend": None})  # nobody asks for results
            client.fleet = fleet
            yield client

    return start


@pytest.fixture
def keys(name):
    """First those with short tasks, then those with long ones."""
    return [f"{name}-{number}" for number in range(SHORT_KEYS + LONG_KEYS)]


@pytest.fixture
def measure(store, name, keys, costs):
    """The cost of a fault, which becomes a row."""

    def run(topology, what, fault, client, queue):
        cost = Cost(topology, what, **cost_of(fault, client, queue, keys, store.url))
        costs.append(cost)
        print(cost)
        return cost

    return run


@pytest.fixture(scope="module")
def alone():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def fleet_alone(start_fleet, alone):
    with start_fleet("alone", rlock_url=alone.url) as client:
        yield client


def pause(server, seconds=PAUSED):
    server.pause()
    time.sleep(seconds)
    server.resume()


def test_a_server_that_is_paused_costs_the_pause(fleet_alone, alone, measure):
    """Semantics 1 and 9: nothing overlaps, nothing is lost."""
    cost = measure("standalone", f"paused for {PAUSED:.0f} s", lambda: pause(alone), fleet_alone, "alone")
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_a_server_that_forgets_everything_lets_one_more_in_for_each_hold(fleet_alone, alone, measure, keys):
    """Semantics 9: no task is lost, and no more overlap than there were locks to forget."""
    cost = measure("standalone", "restarted, memory empty", alone.restart, fleet_alone, "alone")
    assert cost.lost == 0
    assert cost.overlaps <= len(keys)


def be_away(server):
    server.kill()
    time.sleep(AWAY)
    server.restart()


@for_the_page
def test_a_server_that_is_away_and_comes_back_empty(fleet_alone, alone, measure, keys):
    """Semantics 9."""
    fault = f"dead for {AWAY:.0f} s, memory empty then"
    cost = measure("standalone", fault, lambda: be_away(alone), fleet_alone, "alone")
    assert cost.lost == 0
    assert cost.overlaps <= len(keys)


@pytest.fixture(scope="module")
def fleet_behind_sentinel(start_fleet, sentinel_setup):
    with start_fleet("sentinel", rlock_url=sentinel_setup.url) as client:
        yield client


def test_a_primary_that_is_killed_behind_sentinel(sentinel, fleet_behind_sentinel, measure):
    """Semantics 1 and 9: what was replicated is still held afterwards."""
    cost = measure("Sentinel", "primary kill -9", sentinel.kill_primary, fleet_behind_sentinel, "sentinel")
    assert (cost.overlaps, cost.lost) == (0, 0)


def freeze(sentinel):
    """It is back when the other one is the primary, and takes writes until the sentinels demote it."""
    old = sentinel.primary
    old.pause()
    sentinel.await_failover(old)
    old.resume()
    sentinel.await_calm()


FROZEN = "primary frozen, back after failover"


@for_the_page
def test_a_primary_that_freezes_behind_sentinel_and_comes_back(sentinel, fleet_behind_sentinel, measure):
    """Semantics 9: no task is lost, though who is still connected to the old primary overlaps with others."""
    fleet = fleet_behind_sentinel
    cost = measure("Sentinel", FROZEN, lambda: freeze(sentinel), fleet, "sentinel")
    assert cost.lost == 0


@for_the_page
def test_with_lock_replicas_nobody_runs_under_a_lock_of_the_old_primary(sentinel, start_fleet, measure):
    """Semantics 1 and 9: it has no replica any more, so what it grants does not count."""
    with start_fleet("replicated", rlock_url=sentinel.url, rlock_replicas=1) as client:
        what = f"{FROZEN}; `lock_replicas=1`"
        cost = measure("Sentinel", what, lambda: freeze(sentinel), client, "replicated")
    assert (cost.overlaps, cost.lost) == (0, 0)


@for_the_page
def test_a_primary_that_is_demoted_behind_sentinel(sentinel, fleet_behind_sentinel, measure):
    """Semantics 9: for some ten seconds both take writes; who is connected to the old one stays there."""

    def demote():
        sentinel.await_failover(sentinel.demote_primary())
        sentinel.await_calm()

    cost = measure("Sentinel", "SENTINEL FAILOVER", demote, fleet_behind_sentinel, "sentinel")
    assert cost.lost == 0


@pytest.fixture(scope="module")
def fleet_on_cluster(start_fleet, cluster_of_six):
    with start_fleet("cluster", rlock_url=cluster_of_six.url) as client:
        yield client


@pytest.fixture
def victim(cluster, keys):
    """The primary of a key with short tasks."""
    return cluster.primary_of(keys[0])


def test_a_primary_of_a_cluster_that_is_killed(cluster, victim, fleet_on_cluster, measure):
    """Semantics 1 and 9."""
    cost = measure("Cluster", "primary kill -9", victim.kill, fleet_on_cluster, "cluster")
    assert (cost.overlaps, cost.lost) == (0, 0)


@for_the_page
def test_a_primary_of_a_cluster_that_is_demoted(cluster, victim, fleet_on_cluster, measure):
    """Semantics 1 and 9."""
    cost = measure("Cluster", "CLUSTER FAILOVER", lambda: cluster.demote(victim), fleet_on_cluster, "cluster")
    assert (cost.overlaps, cost.lost) == (0, 0)


def test_slots_of_a_cluster_that_move(cluster, victim, keys, fleet_on_cluster, measure):
    """Semantics 1 and 9."""

    def move():
        for key in keys:
            migration = Migration(cluster, key)
            migration.begin()
            migration.move_keys()
            migration.end()

    cost = measure("Cluster", "slots of all keys moved", move, fleet_on_cluster, "cluster")
    assert (cost.overlaps, cost.lost) == (0, 0)


@for_the_page
def test_a_primary_of_a_cluster_that_freezes_and_comes_back(cluster, victim, keys, fleet_on_cluster, measure):
    """Semantics 1 and 9."""

    def freeze():
        victim.pause()
        time.sleep(PAUSED)
        victim.resume()
        cluster.await_failover(victim, keys[0])

    cost = measure("Cluster", FROZEN, freeze, fleet_on_cluster, "cluster")
    assert (cost.overlaps, cost.lost) == (0, 0)


def revive(fleet):
    """What Kubernetes does: kombu's transport for Sentinel ends a worker whose broker dies."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not any(worker.running for worker in fleet), timeout=TIME_TO_DIE, what="their end")
    for worker in fleet:
        if not worker.running:
            worker.restart()


def test_broker_backend_and_locks_behind_one_sentinel_by_celerys_settings(sentinel, start_fleet, measure):
    """Semantics 1: no rlock_url. The broker itself may lose what it had not replicated."""
    conf = {"broker_url": sentinel.broker_url, "result_backend": sentinel.broker_url}
    options = {"master_name": NAME, "visibility_timeout": 5, "unacked_restore_interval": 0.5}
    conf["broker_transport_options"] = {**options, "unacked_restore_throttle": 1}
    conf["result_backend_transport_options"] = {"master_name": NAME}

    def kill():
        sentinel.await_failover(sentinel.kill_primary())
        revive(client.fleet)

    with start_fleet("all", **conf) as client:
        cost = measure("Sentinel, broker and backend too", "primary kill -9", kill, client, "all")
    assert cost.overlaps == 0
