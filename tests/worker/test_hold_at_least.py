"""`lock_hold_at_least`: the key stays taken for this time from the start, even when the run ends earlier."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from celery_rlock import LockBusy
from tests.support.processes import wait_until
from tests.worker.awaiting import await_state, kill_child, lock

pytestmark = pytest.mark.usefixtures("fleet")


def test_the_key_rests_after_the_run(proj, name, holder, lease_of):
    result = proj.rests_long.delay(name)
    wait_until(lambda: holder(name) == f"rest:{result.id}", timeout=20, what="the rest")
    assert 20 < lease_of(name) <= 60


def test_a_key_that_rests_is_busy(proj, name, records):
    first = proj.at_least.delay(name)
    first.get(timeout=20)
    with pytest.raises(TaskRevokedError, match=f"rest:{first.id}"):
        proj.at_least.delay(name).get(timeout=20)
    assert len(records(name)) == 2


def test_a_waiter_starts_when_the_rest_ends(proj, name, taken_at):
    results = [proj.rests.delay(name) for _ in range(3)]
    for result in results:
        result.get(timeout=40)
    assert len(taken_at(name)) == 3
    assert min(later - earlier for earlier, later in pairwise(taken_at(name))) > 1.4


def test_the_rest_is_not_renewed(proj, name, holder, locks, await_free):
    """Its lease is longer than lock_ttl (1 s) and gets shorter and shorter."""
    proj.rests.delay(name).get(timeout=20)
    wait_until(lambda: (holder(name) or "").startswith("rest:"), timeout=10, what="the rest")
    leases = []
    while (lease := locks.pttl(lock(name))) > 0:
        leases.append(lease)
        time.sleep(0.1)
    assert leases == sorted(leases, reverse=True)
    assert leases[0] <= 1500
    await_free(name, timeout=5)


def test_a_run_that_is_longer_frees_the_key_at_its_end(proj, name, await_free):
    result = proj.rests.apply_async((name, 1), lock_hold_at_least=0.5)
    result.get(timeout=20)
    await_free(name, timeout=10)
    assert proj.rests.apply_async((name,), lock_busy="fail").get(timeout=20)["held"]


def test_the_key_rests_after_a_failed_run_too(proj, name, holder):
    result = proj.rests_long.delay(name, "no number")
    await_state(result, states.FAILURE)
    wait_until(lambda: holder(name) == f"rest:{result.id}", timeout=10, what="the rest")


def test_the_key_of_a_killed_child_is_free_at_once(proj, fleet, name, await_start, await_free):
    """Semantics 6: a run that died has not done its work, so its key does not rest."""
    proj.rests_long.delay(name, 60)
    kill_child(proj.app, fleet, await_start(name)["pid"])
    await_free(name, timeout=15)


def test_the_same_thread_does_not_enter_a_key_that_rests(proj, name, holder, hold):
    """Semantics 2: re-entry ends with the run."""
    proj.at_least(name)
    assert holder(name).startswith("rest:thread-")
    with pytest.raises(LockBusy):
        proj.at_least(name)
    with pytest.raises(LockBusy):
        proj.at_least.apply((name,), throw=True)
    assert not hold(name).acquire(blocking=False)


def test_the_tasks_own_retry_waits_for_the_end_of_the_rest(proj, name, taken_at):
    """It is the same task, so its `lock_busy` does not apply."""
    result = proj.once.apply_async(
        (name,), {"retry": 0}, lock_from="run", lock_busy="skip", lock_hold_at_least=1
    )
    assert result.get(timeout=40)["retries"] == 2
    assert len(taken_at(name)) == 3
    assert min(later - earlier for earlier, later in pairwise(taken_at(name))) > 0.8
