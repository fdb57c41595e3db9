"""`lock_hold_at_least`: the key stays taken so long from its start, though the run ends earlier."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from celery_rlock import LockBusy
from tests.support.processes import wait_until
from tests.unique.conftest import lock

pytestmark = pytest.mark.usefixtures("fleet")


def test_after_its_run_the_key_rests(proj, name, holder, lease_of):
    result = proj.rests_long.delay(name)
    wait_until(lambda: holder(name) == f"rest:{result.id}", timeout=20, what="the rest")
    assert 20 < lease_of(name) <= 60


def test_who_rests_lets_nobody_in(proj, name, records):
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
    assert min(later - earlier for earlier, later in pairwise(taken_at(name))) > 2.8


def test_the_rest_is_not_renewed(proj, name, holder, store, await_free):
    """Its lease is longer than lock_ttl (1 s) and gets shorter and shorter."""
    proj.rests.delay(name).get(timeout=20)
    wait_until(lambda: (holder(name) or "").startswith("rest:"), timeout=10, what="the rest")
    leases = []
    while (lease := store.pttl(lock(name))) > 0:
        leases.append(lease)
        time.sleep(0.1)
    assert leases == sorted(leases, reverse=True)
    assert leases[0] <= 3000
    await_free(name, timeout=5)


def test_a_run_longer_than_that_frees_the_key_at_its_end(proj, name, await_free, records):
    result = proj.rests.apply_async((name, 1.5), lock_hold_at_least=1)
    result.get(timeout=20)
    await_free(name, timeout=10)
    assert proj.rests.apply_async((name,), lock_busy="fail").get(timeout=20)["held"]


def test_a_run_that_fails_rests_too(proj, name, holder, fleet):
    result = proj.rests_long.delay(name, "no number")
    wait_until(lambda: result.state == states.FAILURE, timeout=20, what="the failure")
    wait_until(lambda: holder(name) == f"rest:{result.id}", timeout=10, what="the rest")


def test_a_killed_childs_key_is_free_at_once(proj, name, await_start, await_free):
    """Semantics 6: a run that died has not done its work, so there is nothing to rest from."""
    proj.rests_long.delay(name, 60)
    os.kill(await_start(name)["pid"], signal.SIGKILL)
    await_free(name, timeout=15)


def test_the_same_thread_does_not_enter_what_rests(proj, name, holder, hold):
    """Semantics 2: not even the one that rests."""
    proj.at_least(name)
    assert holder(name).startswith("rest:thread-")
    with pytest.raises(LockBusy):
        proj.at_least(name)
    with pytest.raises(LockBusy):
        proj.at_least.apply((name,), throw=True)
    assert not hold(name).acquire(blocking=False)


def test_a_retry_of_its_own_waits_for_the_end_of_the_rest(proj, name, taken_at):
    """Whatever lock_busy says: it is the same task."""
    result = proj.once.apply_async(
        (name,), {"retry": 0}, lock_from="run", lock_busy="skip", lock_hold_at_least=1.5
    )
    assert result.get(timeout=40)["retries"] == 2
    assert len(taken_at(name)) == 3
    assert min(later - earlier for earlier, later in pairwise(taken_at(name))) > 1.3
