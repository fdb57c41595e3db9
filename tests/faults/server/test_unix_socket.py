"""A lock server that listens on a unix socket alone."""

from __future__ import annotations

import pytest

from celery_rlock import LockUnavailable
from celery_rlock.core.client import connect
from celery_rlock.core.scripts import Scripts
from tests.support.servers import Server, available_kinds
from tests.trouble import rights

QUEUE = "unix"
SOON = 30.0


class SocketServer(Server):
    def __init__(self, kind):
        super().__init__(kind)
        self.path = self.directory / "server.sock"
        self.url = f"unix://{self.path}"
        self._flags = {"port": 0, "unixsocket": self.path}


@pytest.fixture(scope="module", params=available_kinds())
def server(request):
    with SocketServer(request.param).started() as server:
        yield server


@pytest.mark.parametrize("scheme", ["unix", "redis+socket", "socket"])
def test_all_of_the_lock_works_over_a_socket(server, scheme):
    rights.use_everything(Scripts(connect(f"{scheme}://{server.path}")))


def test_a_user_may_log_in_over_a_socket(server):
    user = rights.make_user(server)
    rights.use_everything(Scripts(connect(f"unix://{user}:{rights.PASSWORD}@{server.path}")))
    wrong = Scripts(connect(f"unix://{user}:wrong-secret@{server.path}"))
    with pytest.raises(LockUnavailable, match="AuthenticationError") as unavailable:
        rights.use_everything(wrong)
    assert "wrong-secret" not in str(unavailable.value)


def test_a_socket_that_is_not_there_is_an_unavailable_lock(server):
    with pytest.raises(LockUnavailable, match="No such file"):
        rights.use_everything(Scripts(connect(f"unix://{server.path}-not")))


def test_a_worker_locks_over_a_socket(server, start_fleet, send, name):
    with start_fleet(server.url, queue=QUEUE, count=1):
        sent = [send("retrying", name, queue=QUEUE) for _ in range(4)]
        assert all(task.get(timeout=SOON)["held"] for task in sent)
        assert len({task.get(timeout=SOON)["token"] for task in sent}) == len(sent)
