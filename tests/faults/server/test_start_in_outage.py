"""A task that starts while the lock server is in trouble ends as its `lock_unavailable` says."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
from celery import states

from celery_rlock import LockUnavailable
from tests.faults.server import lock_outages
from tests.faults.server.lock_outages import QUEUE, TIMEOUT, slow
from tests.support.fixtures import new_name
from tests.support.processes import wait_until

SOON = 30.0
#: Half of the tasks are acknowledged late, and two share each key.
MANY = 8
#: One outage lasts long, so that tasks retry many times.
LASTING = {lock_outages.STOPPED: 10.0}
SLOW = {lock_outages.STOPPED, lock_outages.PAUSED, lock_outages.READ_ONLY, lock_outages.LOADING}
OUTAGES = [slow(outage) if outage in SLOW else outage for outage in lock_outages.OUTAGES]


@pytest.fixture(scope="module", params=OUTAGES, ids=str)
def outcome(request, fleet, server, send, records):
    """What became of tasks that were published during the outage."""
    outage = request.param
    names = SimpleNamespace(run=new_name(), fail=new_name(), retry=[new_name() for _ in range(MANY // 2)])
    with outage(server):
        ends = time.monotonic() + LASTING.get(outage, 0)
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


def test_fail_makes_the_task_fail_with_the_reason(outcome, records):
    with pytest.raises(LockUnavailable, match=outcome.outage.error):
        outcome.failed.get(timeout=1)
    assert outcome.failed.state == states.FAILURE
    assert records(outcome.names.fail, "start") == []


def test_run_runs_the_task_without_the_lock(outcome, records):
    state = outcome.ran.get(timeout=1)
    assert (state["held"], state["token"]) == (False, 0)
    assert len(records(outcome.names.run, "start")) == 1


def test_retry_runs_the_task_once_when_the_server_is_back(outcome, records):
    """Semantics 9: with early and late ack no task runs during the outage, twice or never."""
    assert outcome.too_early == []
    for name in outcome.names.retry:
        starts, ends = records(name, "start"), records(name, "end")
        assert len(starts) == len(ends) == len({entry["id"] for entry in ends}) == 2
        assert all(entry["held"] for entry in ends)


def test_no_attempt_takes_longer_than_its_timeouts(outcome, records):
    """An attempt waits for the server at most twice: for the acquire, and to undo it."""
    names = [outcome.names.run, outcome.names.fail, *outcome.names.retry]
    took = [entry["took"] for name in names for entry in records(name, "attempt")]
    assert len(took) >= MANY + 2
    assert max(took) < 2 * TIMEOUT + 5


def test_no_log_shows_a_password(outcome, fleet):
    logs = "".join(worker.log for worker in fleet)
    assert re.search(outcome.outage.error, logs)
    for secret in (lock_outages.PASSWORD, lock_outages.OTHER_PASSWORD):
        assert secret not in logs
