"""A lock server that listens only on a unix socket."""

from __future__ import annotations

import pytest

from celery_rlock import LockUnavailable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.faults import verbs
from tests.faults.server import acl
from tests.support.servers import Server

QUEUE = "unix"
SOON = 30.0


class SocketServer(Server):
    def __init__(self, kind):
        super().__init__(kind)
        self.path = self.directory / "server.sock"
        self.url = f"unix://{self.path}"
        self._flags = {"port": 0, "unixsocket": self.path}


@pytest.fixture(scope="module")
def server(kind):
    with SocketServer(kind).started() as server:
        yield server


@pytest.mark.parametrize("scheme", ["unix", "redis+socket", "socket"])
def test_every_verb_works_over_a_socket(server, scheme):
    verbs.use_all(RedisLockServer(connect(f"{scheme}://{server.path}")))


def test_a_user_can_log_in_over_a_socket(server):
    user = acl.make_user(server)
    verbs.use_all(RedisLockServer(connect(f"unix://{user}:{acl.PASSWORD}@{server.path}")))
    wrong = RedisLockServer(connect(f"unix://{user}:wrong-secret@{server.path}"))
    with pytest.raises(LockUnavailable, match="AuthenticationError") as unavailable:
        verbs.use_all(wrong)
    assert "wrong-secret" not in str(unavailable.value)


def test_a_missing_socket_makes_the_lock_unavailable(server):
    with pytest.raises(LockUnavailable, match="No such file"):
        verbs.use_all(RedisLockServer(connect(f"unix://{server.path}-missing")))


def test_a_worker_locks_over_a_socket(server, start_fleet, send, name):
    with start_fleet(server.url, queue=QUEUE, count=1):
        sent = [send("retrying", name, queue=QUEUE) for _ in range(4)]
        assert all(task.get(timeout=SOON)["held"] for task in sent)
        assert len({task.get(timeout=SOON)["token"] for task in sent}) == len(sent)
