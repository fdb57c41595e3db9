"""The Sentinel and Cluster setups of the test support fail over and move slots as other tests assume."""

from __future__ import annotations

import pytest
import redis

from tests.support.cluster import Cluster, Migration
from tests.support.processes import wait_until
from tests.support.sentinel import SentinelSetup

pytestmark = pytest.mark.slow


def get(server, key):
    with server.client() as client:
        return client.get(key)


def set_to(server, key, value):
    with server.client() as client:
        return client.set(key, value)


def test_sentinels_promote_the_replica_of_a_killed_and_of_a_demoted_primary(kind):
    with SentinelSetup.start(kind) as setup:
        first, second = setup.primary, setup.replica
        set_to(first, "a", 1)
        wait_until(lambda: get(second, "a") == b"1", what="replication")
        assert setup.kill_primary() is first
        assert setup.await_failover(first) is second
        set_to(second, "a", 2)
        setup.mend()
        assert (setup.primary, setup.replica) == (second, first)
        assert get(first, "a") == b"2"
        assert setup.demote_primary() is second
        assert setup.await_failover(second) is first
        assert second.running
        setup.mend()
    assert not any(node.running for node in (*setup.servers, *setup.sentinels))


def test_a_cluster_replaces_a_killed_primary_and_redirects_clients_of_a_moved_slot(kind):
    with Cluster.start(kind) as cluster:
        assert [len(cluster.primary_of(cluster.key_on(p, "k")).slots()) for p in cluster.primaries] == [1] * 3
        key = cluster.key_on(cluster.primaries[1], "k")
        old = cluster.primary_of(key)
        set_to(old, key, 1)
        migration = Migration(cluster, key)
        migration.begin()
        assert get(old, key) == b"1"
        migration.move_keys()
        with pytest.raises(redis.ResponseError, match=f"{migration.slot} .*:{migration.target.port}") as told:
            get(old, key)
        assert isinstance(told.value, redis.cluster.AskError)
        migration.end()
        with pytest.raises(redis.cluster.MovedError):
            get(old, key)
        assert get(cluster.primary_of(key), key) == b"1"
        victim = cluster.primary_of(key)
        successor = cluster.replica_of(victim)
        victim.kill()
        assert cluster.await_failover(victim, key) is successor
        assert get(successor, key) == b"1"
        cluster.mend()
        assert cluster.replica_of(successor) is victim
        cluster.demote(successor)
        assert cluster.await_failover(successor, key) is victim
    assert not any(node.running for node in cluster.nodes)
