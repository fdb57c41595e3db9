"""A task runs under its lock while the lock server is in trouble."""

from __future__ import annotations

import time

import pytest
from celery import states

from celery_rlock import LockLost
from tests.faults.server import lock_outages
from tests.faults.server.lock_outages import QUEUE, slow
from tests.support.outages import cut_all_connections, flush_scripts, full
from tests.support.processes import wait_until

TTL = 3.0  # of the project
LONG_TTL = 6.0  # of `until_told_long_lease`
SOON = 30.0


@pytest.fixture
def start(fleet, send, records, name):
    """Publishes a task and waits until it runs."""

    def started(task="until_told"):
        sent = send(task, name, queue=QUEUE)
        wait_until(lambda: records(name, "start"), timeout=SOON, what="the run")
        return sent

    return started


@pytest.fixture
def lease_left(server, name):
    """The rest of the lock's lease in seconds; negative when there is no lock."""

    def left():
        with server.client() as client:
            return client.pttl(f"rlock:{{{name}}}") / 1000

    return left


def failed_renewals(fleet, name):
    """The lines in which a worker has logged that it could not renew the lock."""
    lines = (line for worker in fleet for line in worker.log.splitlines())
    return [line for line in lines if "could not renew" in line and name in line]


@pytest.fixture
def check_next(send, records, name):
    """The next task of the key runs once, under its own lock and with a greater token."""

    def check(token=0):
        state = send("retrying", name, queue=QUEUE).get(timeout=SOON)
        assert state["held"]
        assert state["token"] > token
        assert len(records(name, "start")) == len(records(name, "end")) == 2

    return check


def test_a_run_learns_that_the_server_lost_its_memory_and_the_next_task_gets_the_lock(
    start, server, fleet, records, name, tell, check_next
):
    """Semantics 8: signal, log and `self.lock.lost`; the run itself continues."""
    sent = start()
    server.restart()
    [loss] = wait_until(lambda: records(name, "lost"), timeout=SOON, what="the signal")
    assert "released or took it" in loss["reason"]
    assert any(f"lock '{name}' of {loss['owner']} is lost" in worker.log for worker in fleet)
    tell(name)
    state = sent.get(timeout=SOON)
    assert state["lost"]
    assert not state["held"]
    check_next(state["token"])


def test_abort_ends_the_run_when_the_server_lost_its_memory(start, server, records, name):
    """Semantics 8: `lock_lost="abort"`."""
    sent = start("until_told_or_lost")
    server.restart()
    with pytest.raises(LockLost):
        sent.get(timeout=SOON)
    assert records(name, "end") == []


@pytest.mark.parametrize(
    "outage", [slow(lock_outages.STOPPED), lock_outages.SILENT, slow(lock_outages.PASSWORD_CHANGED)], ids=str
)
def test_a_run_loses_its_lock_in_an_outage_longer_than_the_lease(
    outage, start, server, records, name, tell, check_next
):
    """Semantics 7 and 8: no renewal succeeds, so the local deadline counts."""
    sent = start()
    with outage(server):
        [loss] = wait_until(lambda: records(name, "lost"), timeout=SOON, what="the signal")
    assert "lease ended" in loss["reason"]
    tell(name)
    state = sent.get(timeout=SOON)
    assert state["lost"]
    check_next(state["token"])


@pytest.mark.parametrize(
    "outage", [lock_outages.SILENT, slow(lock_outages.PAUSED), slow(lock_outages.PASSWORD_CHANGED)], ids=str
)
def test_a_run_keeps_its_lock_in_an_outage_shorter_than_the_lease(
    outage, start, server, fleet, records, name, tell, lease_left, check_next
):
    """Semantics 7: the worker repeats a failed renewal, and releases the lock as usual."""
    sent = start("until_told_long_lease")
    with outage(server):
        wait_until(lambda: failed_renewals(fleet, name), timeout=SOON, what="a failed renewal")
    wait_until(lambda: lease_left() > LONG_TTL * 0.8, timeout=SOON, what="the renewal")
    tell(name)
    assert sent.get(timeout=SOON)["held"]
    assert records(name, "lost") == []
    check_next()


@pytest.mark.slow
@pytest.mark.parametrize(
    "disturb", [flush_scripts, cut_all_connections], ids=["flush scripts", "cut connections"]
)
def test_a_run_keeps_its_lock_when_the_server_drops_scripts_or_connections(
    disturb, start, server, records, name, tell, lease_left, check_next
):
    """Semantics 4: the worker sends the scripts again and connects again."""
    sent = start()
    disturb(server)
    time.sleep(TTL * 1.2)
    assert lease_left() > 0
    disturb(server)
    tell(name)
    assert sent.get(timeout=SOON)["held"]
    assert records(name, "lost") == []
    check_next()


@pytest.mark.slow
def test_a_full_server_renews_releases_and_grants_locks(start, server, records, name, tell, send, lease_left):
    """Semantics 7: also where the server has no memory for a place among the waiters."""
    sent = start()
    with full(server):
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


@pytest.mark.parametrize(
    "outage", [lock_outages.STOPPED, lock_outages.SILENT, slow(lock_outages.PAUSED)], ids=str
)
def test_a_run_that_ends_in_an_outage_succeeds(outage, start, server, records, name, tell, check_next):
    """Semantics 5: a failing release neither fails a finished task nor delays it."""
    sent = start()
    with outage(server):
        tell(name)
        assert sent.get(timeout=SOON)["token"]
        assert sent.state == states.SUCCESS
    check_next()
