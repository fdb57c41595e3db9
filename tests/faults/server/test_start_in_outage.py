"""While the lock server is in trouble a task ends as its `lock_unavailable` says; none runs twice."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
from celery import states

from celery_rlock import LockUnavailable
from tests.support.processes import wait_until
from tests.trouble import incidents
from tests.trouble.conftest import new_name

QUEUE = "outcomes"
TIMEOUT = 0.5
SOON = 30.0
#: Half of them are acknowledged late; some share a key.
MANY = 8
#: What an outage in the night takes at least.
LASTING = {str(incidents.STOPPED): 10.0}


@pytest.fixture(scope="module")
def server():
    with incidents.server_with_password() as server:
        yield server


@pytest.fixture(scope="module")
def fleet(start_fleet, server):
    with start_fleet(f"{server.url}?socket_timeout={TIMEOUT}", queue=QUEUE) as fleet:
        yield fleet


@pytest.fixture(scope="module", params=incidents.INCIDENTS, ids=str)
def outcome(request, fleet, server, send, records):
    """What became of tasks that were published while the server was in trouble."""
    incident = request.param
    names = SimpleNamespace(run=new_name(), fail=new_name(), retry=[new_name() for _ in range(MANY // 2)])
    with incident(server):
        ends = time.monotonic() + LASTING.get(str(incident), 0)
        failed = send("failing", names.fail, queue=QUEUE)
        ran = send("running", names.run, queue=QUEUE)
        kinds = ["retrying", "retrying_late"] * (MANY // 2)
        retried = [send(kind, names.retry[i // 2], queue=QUEUE) for i, kind in enumerate(kinds)]
        for task in (failed, ran):
            wait_until(lambda task=task: task.state in states.READY_STATES, timeout=SOON, what="its end")
        for task in retried:
            wait_until(lambda task=task: task.state == states.RETRY, timeout=SOON, what="it to wait")
        time.sleep(max(0, ends - time.monotonic()))
        too_early = [entry for name in names.retry for entry in records(name, "start")]
    for task in retried:
        task.get(timeout=SOON)
    return SimpleNamespace(**locals())


def test_fail_is_a_failure_that_says_why(outcome, records):
    with pytest.raises(LockUnavailable, match=outcome.incident.said):
        outcome.failed.get(timeout=1)
    assert outcome.failed.state == states.FAILURE
    assert records(outcome.names.fail, "start") == []


def test_run_runs_without_the_lock(outcome, records):
    state = outcome.ran.get(timeout=1)
    assert (state["held"], state["token"]) == (False, 0)
    assert len(records(outcome.names.run, "start")) == 1


def test_retry_runs_once_when_the_server_is_back(outcome, records):
    """Semantics 9: none before, none twice, none lost, in both ack modes; each under its lock."""
    assert outcome.too_early == []
    for name in outcome.names.retry:
        starts, ends = records(name, "start"), records(name, "end")
        assert len(starts) == len(ends) == len({entry["id"] for entry in ends}) == 2
        assert all(entry["held"] for entry in ends)


def test_no_attempt_takes_longer_than_its_timeouts(outcome, records):
    """The acquire and its undoing may each wait once for the server."""
    names = [outcome.names.run, outcome.names.fail, *outcome.names.retry]
    took = [entry["took"] for name in names for entry in records(name, "attempt")]
    assert len(took) >= MANY + 2
    assert max(took) < 2 * TIMEOUT + 5


def test_no_log_and_no_error_has_the_password(outcome, fleet):
    logs = "".join(worker.log for worker in fleet)
    assert re.search(outcome.incident.said, logs)
    for secret in (incidents.PASSWORD, incidents.ANOTHER):
        assert secret not in logs
