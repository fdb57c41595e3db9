"""Real workers that log in to their lock server as the user of docs/security.md."""

from __future__ import annotations

import pytest

from tests.faults.server import acl
from tests.support.processes import wait_until
from tests.support.servers import DEFAULT_KIND, Server

QUEUE = "rights"
SOON = 30.0


@pytest.fixture(scope="module")
def server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(start_fleet, server):
    url = acl.login(server, acl.make_user(server))
    with start_fleet(url, queue=QUEUE, args=["-l", "DEBUG"]) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def no_command_is_refused(fleet, server):
    """The server refuses no command in any of these tests, and no log shows the password."""
    yield
    assert acl.refused(server) == set()
    assert not [worker for worker in fleet if acl.PASSWORD in worker.log]


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


@pytest.mark.slow
def test_a_lock_is_renewed(send, server, records, tell, name):
    sent = send("until_told", name, queue=QUEUE)
    wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
    with server.client() as client:
        first = client.pexpiretime(f"rlock:{{{name}}}")
        wait_until(lambda: client.pexpiretime(f"rlock:{{{name}}}") > first, timeout=SOON, what="the renewal")
    tell(name)
    assert sent.get(timeout=SOON)["held"]


def test_the_lock_of_a_dead_child_is_freed_and_its_task_runs_again(send, records, name):
    sent = send("dying", name, queue=QUEUE)
    assert sent.get(timeout=SOON)["held"]
    assert len(records(name, "end")) == 1


@pytest.mark.slow
def test_a_call_that_is_published_twice_runs_once(send, records, name):
    first, second = send("publish_twice", name, QUEUE, queue=QUEUE).get(timeout=SOON)
    assert first == second
    wait_until(lambda: records(name, "end"), timeout=SOON, what="its run")
    assert [entry["id"] for entry in records(name, "start")] == [first]
