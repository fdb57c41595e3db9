"""The client of a Cluster: what redis-py's own would not survive."""

from __future__ import annotations

import pytest

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.conftest import DEFAULT_KIND
from tests.redis.test_fork import in_child, takes
from tests.support.processes import free_port, wait_until
from tests.support.servers import Server


class Alone(Server):
    """A Cluster of one node."""

    def __init__(self):
        super().__init__(DEFAULT_KIND, cluster_enabled="yes", cluster_port=free_port())

    def started(self):
        super().started()
        client = self.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok", timeout=30, what="the Cluster")
        return self


def test_a_cluster_whose_nodes_are_all_new_is_found_by_its_url_again():
    """redis-py asks only the nodes that it saw last."""
    with Alone() as first, Alone() as second:
        first.started()
        lock = ReentrantLock(
            "k", lock_server=RedisLockServer(connect(f"redis+cluster://{address(first)},{address(second)}"))
        )
        with lock:
            assert lock.token
        first.kill()
        second.started()

        def is_back():
            try:
                return lock.acquire(blocking=False)
            except LockUnavailable:
                return False

        wait_until(is_back, timeout=20, what="the new node")
        lock.release()


def test_a_cluster_that_is_down_at_first_is_unavailable_and_then_used():
    with Alone() as node:
        lock = ReentrantLock("k", lock_server=RedisLockServer(connect(f"redis+cluster://{address(node)}")))
        with pytest.raises(LockUnavailable):
            lock.acquire()
        node.started()
        with lock:
            assert lock.owned()


def test_a_child_has_connections_of_its_own_and_waits_for_none_of_its_parents_locks():
    with Alone().started() as node:
        lock_server = RedisLockServer(connect(f"redis+cluster://{address(node)}"))
        with ReentrantLock("parent", lock_server=lock_server) as lock:
            with lock_server.client._mutex:  # as another thread may have it at the fork
                assert in_child(takes(lock_server, "child")) == 0
            assert lock.owned()


def address(server):
    return f"127.0.0.1:{server.port}"
