"""Real workers whose lock server knows them only as the user of docs/security.md."""

from __future__ import annotations

import pytest

from tests.conftest import DEFAULT_KIND
from tests.support.processes import wait_until
from tests.support.servers import Server
from tests.trouble import rights
from tests.trouble.test_rights import UNNEEDED

QUEUE = "rights"
SOON = 30.0


@pytest.fixture(scope="module")
def server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(start_fleet, server):
    url = rights.login(server, rights.make_user(server))
    with start_fleet(url, queue=QUEUE, args=["-l", "DEBUG"]) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def nothing_is_refused(fleet, server):
    """And no password shows."""
    yield
    with server.client(decode_responses=True) as client:
        assert {entry["object"] for entry in client.acl_log()} <= UNNEEDED
    assert not [worker for worker in fleet if rights.PASSWORD in worker.log]


def test_waiters_are_woken(send, server, records, tell, name):
    holder = send("until_told", name, queue=QUEUE)
    wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
    waiters = [send("retrying_late", name, queue=QUEUE) for _ in range(4)]
    with server.client() as client:
        wait_until(lambda: client.zcard(f"rlock:{{{name}}}:waiters") == 4, timeout=SOON, what="the waiters")
        client.script_flush()
    tell(name)
    assert all(task.get(timeout=SOON)["held"] for task in (holder, *waiters))
    assert len(records(name, "end")) == 5


def test_a_lock_is_renewed(send, server, records, tell, name):
    sent = send("until_told", name, queue=QUEUE)
    wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
    with server.client() as client:
        first = client.pexpiretime(f"rlock:{{{name}}}")
        wait_until(lambda: client.pexpiretime(f"rlock:{{{name}}}") > first, timeout=SOON, what="the renewal")
    tell(name)
    assert sent.get(timeout=SOON)["held"]


def test_the_lock_of_a_dead_child_is_freed_and_its_copy_runs(send, records, name):
    sent = send("dying", name, queue=QUEUE)
    assert sent.get(timeout=SOON)["held"]
    assert len(records(name, "end")) == 1


def test_what_is_published_twice_runs_once(send, records, name):
    first, second = send("publishing", name, QUEUE, queue=QUEUE).get(timeout=SOON)
    assert first == second
    wait_until(lambda: records(name, "end"), timeout=SOON, what="its run")
    assert [entry["id"] for entry in records(name, "start")] == [first]
