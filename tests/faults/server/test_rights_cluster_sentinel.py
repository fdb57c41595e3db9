"""The users of docs/security.md on a Cluster and on sentinels."""

from __future__ import annotations

import pytest
import redis

from celery_rlock import LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer, Renewal
from celery_rlock.server.replies import Release
from tests.faults import verbs
from tests.faults.server import acl
from tests.support.cluster import Cluster, Migration
from tests.support.sentinel import NAME, SentinelNode
from tests.support.servers import DEFAULT_KIND, Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    with Cluster.start(DEFAULT_KIND) as cluster:
        yield cluster


@pytest.fixture
def in_cluster(cluster):
    """The lock server's verbs as a user with the page's rules for a Cluster, without these commands."""

    def log_in(user, without=()):
        for node in cluster.nodes:
            acl.set_user(node, user, acl.rules("worker") + acl.rules("cluster"), without)
        return RedisLockServer(connect(cluster.url.replace("://", f"://{user}:{acl.PASSWORD}@")))

    return log_in


def renew_while_slots_move(lock_server, cluster):
    """Hold a lock and renew it while its slot moves. (Other verbs wait for the end of the move.)"""
    name, owner = lock_server.redis_keys(f"moving-{verbs.new_owner().delivery}"), verbs.new_owner()
    taken = lock_server.acquire(name, owner, 1, verbs.LEASE, "")
    migration = Migration(cluster, name.lock)
    migration.begin()
    migration.move_keys()
    try:
        assert verbs.raise_errors(lock_server.renew([Renewal(name, owner, taken.token, verbs.LEASE)])) == [
            True
        ]
    finally:
        migration.end()
    assert lock_server.release(name, owner, Release()) == 1


def refused(cluster, user):
    return set().union(*(acl.refused(node, user) for node in cluster.nodes))


def test_the_user_can_use_every_verb_on_a_cluster(cluster, in_cluster):
    lock_server = in_cluster("whole")
    verbs.use_all(lock_server)
    renew_while_slots_move(lock_server, cluster)
    assert refused(cluster, "whole") == set()


@pytest.mark.parametrize("command", acl.commands("cluster"))
def test_the_user_needs_every_one_of_its_cluster_commands(cluster, in_cluster, command):
    user = f"without-{command.replace('|', '-')}"
    lock_server = in_cluster(user, without=[command])
    with pytest.raises((LockUnavailable, redis.RedisError)):
        verbs.use_all(lock_server)
        renew_while_slots_move(lock_server, cluster)
    assert refused(cluster, user) == {command}


@pytest.fixture(scope="module")
def sentinel():
    """One sentinel and its primary."""
    with Server.start(DEFAULT_KIND) as server, SentinelNode(DEFAULT_KIND, server.port).started() as sentinel:
        yield sentinel


@pytest.mark.parametrize("without", [None, *acl.commands("sentinel")])
def test_the_user_on_sentinels_needs_every_one_of_its_commands(sentinel, without):
    acl.set_user(sentinel, "asking", acl.rules("sentinel"), [without])
    login = f"sentinel_username=asking&sentinel_password={acl.PASSWORD}&client_name={without}"
    lock_server = RedisLockServer(
        connect(f"sentinel://127.0.0.1:{sentinel.port}/0?master_name={NAME}&{login}")
    )
    if without is None:
        verbs.use_all(lock_server)
        return
    with pytest.raises(LockUnavailable) as unavailable:
        verbs.use_all(lock_server)
    assert acl.PASSWORD not in str(unavailable.value)
