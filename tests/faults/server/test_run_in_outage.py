"""What happens to a task that runs under its lock while the lock server is in trouble."""

from __future__ import annotations

import time

import pytest
from celery import states

from celery_rlock import LockLost
from tests.support.processes import wait_until
from tests.trouble import incidents

QUEUE = "running"
TTL = 3.0  # of the app
LONG_TTL = 6.0  # of `until_told_long_lease`
SOON = 30.0


@pytest.fixture(scope="module")
def server():
    with incidents.server_with_password() as server:
        yield server


@pytest.fixture(scope="module")
def fleet(start_fleet, server):
    with start_fleet(f"{server.url}?socket_timeout=0.5", queue=QUEUE) as fleet:
        yield fleet


@pytest.fixture
def start(fleet, send, records, name):
    """A task that runs now."""

    def started(task="until_told"):
        sent = send(task, name, queue=QUEUE)
        wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
        return sent

    return started


@pytest.fixture
def lease_left(server, name):
    """Of the task's lock, in seconds; negative when there is none."""

    def left():
        with server.client() as client:
            return client.pttl(f"rlock:{{{name}}}") / 1000

    return left


@pytest.fixture
def check_next(send, records, name):
    """One that comes now runs, once, under a lock of its own and with a greater token."""

    def check(token=0):
        state = send("retrying", name, queue=QUEUE).get(timeout=SOON)
        assert state["held"]
        assert state["token"] > token
        assert len(records(name, "start")) == len(records(name, "end")) == 2

    return check


def test_a_memory_that_is_lost_is_told_and_the_next_lock_works(
    start, server, fleet, records, name, tell, check_next
):
    """Semantics 8: signal, log and `self.lock.lost`; the run itself goes on."""
    sent = start()
    incidents.restart_empty(server)
    [told] = wait_until(lambda: records(name, "lost"), timeout=SOON, what="the signal")
    assert told["reason"] == "somebody else released or took it"
    assert any(f"lock '{name}' of {told['owner']} is lost" in worker.log for worker in fleet)
    tell(name)
    state = sent.get(timeout=SOON)
    assert state["lost"]
    assert not state["held"]
    check_next(state["token"])


def test_abort_ends_the_run_when_the_memory_is_lost(start, server, records, name):
    """Semantics 8: `lock_lost="abort"`."""
    sent = start("until_told_or_lost")
    incidents.restart_empty(server)
    with pytest.raises(LockLost):
        sent.get(timeout=SOON)
    assert records(name, "end") == []


@pytest.mark.parametrize("incident", [incidents.STOPPED, incidents.SILENT, incidents.OTHER_PASSWORD], ids=str)
def test_trouble_that_outlasts_the_lease_is_told(incident, start, server, records, name, tell, check_next):
    """Semantics 7 and 8: nobody can renew, so the local deadline counts."""
    sent = start()
    with incident(server):
        [told] = wait_until(lambda: records(name, "lost"), timeout=SOON, what="the signal")
    assert told["reason"] == "its lease ended before it was renewed"
    tell(name)
    state = sent.get(timeout=SOON)
    assert state["lost"]
    check_next(state["token"])


@pytest.mark.parametrize("incident", [incidents.SILENT, incidents.PAUSED, incidents.OTHER_PASSWORD], ids=str)
def test_trouble_that_is_shorter_than_the_lease_takes_nothing(
    incident, start, server, fleet, records, name, tell, lease_left, check_next
):
    """Semantics 7: a renewal that failed is tried again; the lock is freed as ever."""
    sent = start("until_told_long_lease")
    with incident(server):
        failed = f"could not renew lock '{name}'"
        wait_until(lambda: any(failed in worker.log for worker in fleet), timeout=SOON, what="the failure")
    wait_until(lambda: lease_left() > LONG_TTL * 0.8, timeout=SOON, what="the renewal")
    tell(name)
    assert sent.get(timeout=SOON)["held"]
    assert records(name, "lost") == []
    check_next()


@pytest.mark.parametrize(
    "incident",
    [incidents.flush_scripts, incidents.cut_all_connections],
    ids=lambda incident: incident.__name__,
)
def test_a_run_does_not_notice(incident, start, server, records, name, tell, lease_left, check_next):
    """Semantics 4: scripts are sent again, connections made again."""
    sent = start()
    incident(server)
    time.sleep(TTL * 1.2)
    assert lease_left() > 0
    incident(server)
    tell(name)
    assert sent.get(timeout=SOON)["held"]
    assert records(name, "lost") == []
    check_next()


def test_a_full_server_lets_a_run_go_on_and_the_next_one_in(
    start, server, records, name, tell, send, lease_left
):
    """Semantics 7: also where there is no memory for a place among the waiters."""
    sent = start()
    with incidents.full(server):
        waiter = send("retrying", name, queue=QUEUE)
        wait_until(lambda: waiter.state == states.RETRY, timeout=SOON, what="it to wait")
        time.sleep(TTL * 1.2)
        assert lease_left() > 0
        tell(name)
        assert sent.get(timeout=SOON)["held"]
        assert waiter.get(timeout=SOON)["held"]
        wait_until(lambda: lease_left() < 0, timeout=SOON, what="the release")
    assert records(name, "lost") == []
    assert len(records(name, "end")) == 2


@pytest.mark.parametrize("incident", [incidents.STOPPED, incidents.SILENT, incidents.PAUSED], ids=str)
def test_a_run_that_ends_in_trouble_succeeds(incident, start, server, records, name, tell, check_next):
    """Semantics 5: a failing release never turns a finished task into a failure, nor holds it up."""
    sent = start()
    with incident(server):
        tell(name)
        assert sent.get(timeout=SOON)["token"]
        assert sent.state == states.SUCCESS
    check_next()
