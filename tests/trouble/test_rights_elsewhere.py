"""The users of docs/security.md in a Cluster and on sentinels."""

from __future__ import annotations

import pytest
import redis

from celery_rlock import LockUnavailable
from celery_rlock.core.client import connect
from celery_rlock.core.replies import Taken
from celery_rlock.core.scripts import Scripts
from tests.conftest import DEFAULT_KIND
from tests.support.cluster import Cluster, Migration
from tests.support.sentinel import NAME, SentinelNode
from tests.support.servers import Server
from tests.trouble import rights
from tests.trouble.test_rights import UNNEEDED


@pytest.fixture(scope="module")
def cluster():
    with Cluster.start(DEFAULT_KIND) as cluster:
        yield cluster


@pytest.fixture
def in_cluster(cluster):
    """The verbs as a user of the Cluster who may do what the page says, but not `without`."""

    def verbs(name, without=()):
        denied = {f"+{command}" for command in without}
        wanted = [rule for rule in rights.rules("worker") + rights.rules("cluster") if rule not in denied]
        for node in cluster.nodes:
            with node.client() as client:
                client.execute_command("ACL", "SETUSER", name, "reset", *wanted)
        return Scripts(connect(cluster.url.replace("://", f"://{name}:{rights.PASSWORD}@")))

    return verbs


def renew_while_slots_move(scripts, cluster):
    """What is held goes on. (Whoever needs several keys of a moving slot is told to come later.)"""
    name, owner = scripts.name(f"moving-{rights.owner().delivery}"), rights.owner()
    assert isinstance(scripts.acquire(name, owner, 1, rights.LEASE, ""), Taken)
    migration = Migration(cluster, name.lock)
    migration.begin()
    migration.move_keys()
    try:
        assert rights.allowed(scripts.renew([(name, owner, rights.LEASE)])) == [True]
    finally:
        migration.end()
    assert scripts.release(name, owner, 0) == 1


def refused_to(cluster, user):
    logs = [node.client(decode_responses=True).acl_log() for node in cluster.nodes]
    return {entry["object"] for log in logs for entry in log if entry["username"] == user} - UNNEEDED


def test_the_user_may_do_in_a_cluster_all_that_the_lock_does(cluster, in_cluster):
    scripts = in_cluster("whole")
    rights.use_everything(scripts)
    renew_while_slots_move(scripts, cluster)
    assert refused_to(cluster, "whole") == set()


@pytest.mark.parametrize("command", rights.commands("cluster"))
def test_no_command_for_a_cluster_can_be_left_out(cluster, in_cluster, command):
    user = f"without-{command.replace('|', '-')}"
    scripts = in_cluster(user, without=[command])
    with pytest.raises((LockUnavailable, redis.RedisError)):
        rights.use_everything(scripts)
        renew_while_slots_move(scripts, cluster)
    assert refused_to(cluster, user) == {command}


@pytest.fixture(scope="module")
def sentinel():
    """One is enough to be asked."""
    with Server.start(DEFAULT_KIND) as server, SentinelNode(DEFAULT_KIND, server.port).started() as sentinel:
        sentinel.master = server
        yield sentinel


@pytest.mark.parametrize("without", [None, *rights.commands("sentinel")])
def test_sentinels_need_to_answer_one_question_only(sentinel, without):
    wanted = [rule for rule in rights.rules("sentinel") if rule != f"+{without}"]
    with sentinel.client() as client:
        client.execute_command("ACL", "SETUSER", "asking", "reset", *wanted)
    login = f"sentinel_username=asking&sentinel_password={rights.PASSWORD}&client_name={without}"
    scripts = Scripts(connect(f"sentinel://127.0.0.1:{sentinel.port}/0?master_name={NAME}&{login}"))
    if without is None:
        rights.use_everything(scripts)
        return
    with pytest.raises(LockUnavailable) as unavailable:
        rights.use_everything(scripts)
    assert rights.PASSWORD not in str(unavailable.value)
