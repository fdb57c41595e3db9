"""What must hold on every pool."""

from __future__ import annotations

import time

import pytest
from celery.exceptions import TaskRevokedError

from celery_rlock import LockLost
from tests.support.processes import wait_until

POOLS = ["prefork", "threads", "gevent", "solo"]


@pytest.fixture(scope="module", params=POOLS)
def pool(request, start_fleet):
    with start_fleet(2, pool=request.param, concurrency=3):
        yield request.param


def test_no_two_runs_of_a_key_overlap(pool, proj, name, overlaps, spans, records):
    """Semantics 1 and 14: exclusive, and the token grows with each run."""
    results = [proj.work.delay(name, 0.05) for _ in range(20)]
    for result in results:
        result.get(timeout=60)
    assert len(spans(name)) == 20
    assert overlaps(name) == 0
    tokens = [entry["token"] for entry in records(name) if entry["event"] == "start"]
    assert tokens == sorted(set(tokens))


def test_runs_of_different_keys_do_overlap(pool, proj, name, spans):
    if pool == "solo":
        names = [f"{name}-{number}" for number in range(2)]
    else:
        names = [f"{name}-{number}" for number in range(4)]
    results = [proj.work.delay(one, 1.5) for one in names]
    for result in results:
        result.get(timeout=60)
    runs = [spans(one)[0] for one in names]
    assert max(start for start, _ in runs) < min(end for _, end in runs)


@pytest.mark.parametrize("how", ["self", "direct", "apply", "RLock"])
def test_an_execution_enters_its_own_lock_again(pool, proj, name, how, store):
    """Semantics 2: re-entry keeps the token, and the way out leaves the outer run its lock."""
    outside, depth, well = proj.nesting.delay(name, how).get(timeout=30)
    assert outside
    assert depth == (2 if how == "self" else 1)
    assert well
    assert not store.exists(f"rlock:{{{name}}}")


def test_the_owner_is_worker_delivery_and_task(pool, proj, name):
    result = proj.work.delay(name, 0)
    fields = result.get(timeout=30)
    worker, _, delivery = fields["owner"].partition("/")
    assert worker == fields["worker"]
    assert delivery.partition(":")[2] == result.id
    assert fields["held"]


def test_a_second_delivery_of_a_running_task_does_not_enter(pool, proj, name, records, overlaps):
    """Semantics 2 and 10: the same id delivered twice does not re-enter, even in one process."""
    for _ in range(2):
        proj.work.apply_async((name, 1.0), task_id=f"twice-{name}")
    wait_until(lambda: len(records(name)) >= 2, timeout=30, what="a delivery to run")
    time.sleep(1)  # waiters come again after 0.3 s at most
    assert overlaps(name) == 0
    if pool != "solo":  # a worker of the solo pool may see the second only when the first has ended
        assert len(records(name)) == 2


def test_a_lease_is_renewed_while_the_task_runs(pool, proj, name, overlaps):
    """Semantics 7: a run three times as long as its lease keeps the lock."""
    results = [proj.short_lease.delay(name, seconds) for seconds in (3, 0)]
    for result in results:
        result.get(timeout=60)
    assert overlaps(name) == 0


@pytest.mark.parametrize("how", ["loop", "sleep"])
def test_abort_interrupts_a_run_that_has_lost_its_lock(pool, proj, name, how, records):
    """Semantics 8: `abort` raises LockLost inside run()."""
    if (pool, how) == ("threads", "sleep"):
        pytest.skip("CPython cannot end a system call in a thread that is not the main one")
    with pytest.raises(LockLost, match="somebody else released or took it"):
        proj.aborting.delay(name, how).get(timeout=20)
    assert [entry["event"] for entry in records(name)] == ["start"]
    assert proj.work.delay(name, 0).get(timeout=20)["held"]


def test_a_loss_is_told_to_a_callable(pool, proj, name, records):
    """Semantics 8: lost is told."""
    assert proj.losing.delay(name).get(timeout=20) == {"lost": True, "held": False}
    assert name in [entry["key"] for entry in records("losses")]


@pytest.mark.parametrize("how", ["success", "failure", "Ignore", "Reject", "retry", "replace", "soft limit"])
def test_a_run_that_ends_frees_its_lock_at_once(pool, proj, name, how, store, records):
    """Semantics 5: released at once, however run() ends."""
    proj.ending.delay(name, how)
    wait_until(lambda: any(entry["event"] == "end" for entry in records(name)), timeout=20, what="the run")
    wait_until(lambda: not store.exists(f"rlock:{{{name}}}"), timeout=5, what="the release")
    assert proj.work.delay(name, 0).get(timeout=20)["held"]


def test_a_busy_task_that_skips_is_revoked_and_says_who_holds_it(pool, proj, name, hold):
    """Semantics 11: skip is visible and terminal."""
    with hold(name) as lock:
        result = proj.skipping.delay(name)
        with pytest.raises(TaskRevokedError, match=rf"skipped: lock '{name}' is held by {lock.owner}"):
            result.get(timeout=20)
        assert result.state == "REVOKED"
