"""What must hold on every pool."""

from __future__ import annotations

import time

import pytest
from celery.exceptions import TaskRevokedError

from celery_rlock import LockLost
from tests.support.processes import wait_until
from tests.worker.awaiting import lock

POOLS = ["prefork", "threads", "gevent", "solo"]


@pytest.fixture(scope="module", params=POOLS)
def pool(request, start_fleet):
    """Two workers of each pool in turn, on a queue of their own."""
    with start_fleet(2, pool=request.param, concurrency=3, queues=[queue_of(request.param)]):
        yield request.param


def queue_of(pool):
    return f"pool-{pool}"


@pytest.fixture
def publish(pool, name):
    """Publishes a task with `name` as its first argument, for the workers of this pool."""
    return lambda task, *args, key=name, **options: task.apply_async(
        (key, *args), queue=queue_of(pool), **options
    )


def test_no_two_runs_of_a_key_overlap(publish, proj, name, overlaps, spans, records):
    """Semantics 1 and 14: exclusive, and the token grows with each run."""
    results = [publish(proj.work, 0.05) for _ in range(20)]
    for result in results:
        result.get(timeout=60)
    assert len(spans(name)) == 20
    assert overlaps(name) == 0
    tokens = [entry["token"] for entry in records(name) if entry["event"] == "start"]
    assert tokens == sorted(set(tokens))


def test_runs_of_different_keys_do_overlap(pool, publish, proj, name, records, tell):
    names = [f"{name}-{number}" for number in range(2 if pool == "solo" else 4)]
    results = [publish(proj.work, 0, True, key=one) for one in names]
    wait_until(lambda: all(records(one) for one in names), timeout=60, what="all to run at the same time")
    for one, result in zip(names, results, strict=True):
        tell(one)
        result.get(timeout=60)


@pytest.mark.parametrize("how", ["self", "direct", "apply", "RLock"])
def test_an_execution_enters_its_own_lock_again(publish, proj, name, how, locks):
    """Semantics 2: re-entry keeps the token, and the way out leaves the outer run its lock."""
    outside, depth, well = publish(proj.nesting, how).get(timeout=30)
    assert outside
    assert depth == (2 if how == "self" else 1)
    assert well
    assert not locks.exists(lock(name))


def test_the_owner_names_worker_delivery_and_task(publish, proj):
    result = publish(proj.work, 0)
    fields = result.get(timeout=30)
    worker, _, delivery = fields["owner"].partition("/")
    assert worker == fields["worker"]
    assert delivery.partition(":")[2] == result.id
    assert fields["held"]


def test_a_second_delivery_of_a_running_task_does_not_enter(
    pool, publish, proj, name, records, overlaps, waiters, tell
):
    """Semantics 2 and 10: the same id delivered twice does not re-enter, even in one process."""
    for _ in range(2):
        publish(proj.work, 0, True, task_id=f"twice-{name}")
    wait_until(lambda: records(name), timeout=30, what="a delivery to run")
    if pool != "solo":  # a worker of the solo pool may see the second only when the first has ended
        waiters.await_count(name, 1)
    time.sleep(0.5)  # the second delivery looks again after 0.3 s at most
    assert len(records(name)) == 1
    tell(name)
    wait_until(lambda: len(records(name)) >= 2, timeout=30, what="the end of the run")
    wait_until(lambda: not waiters(name), timeout=30, what="the second delivery to leave")
    assert overlaps(name) == 0
    if pool != "solo":
        assert len(records(name)) == 2


def test_a_lease_is_renewed_while_the_task_runs(publish, proj, name, overlaps):
    """Semantics 7: a run that is twice as long as its lease keeps the lock."""
    results = [publish(proj.short_lease, seconds) for seconds in (2, 0)]
    for result in results:
        result.get(timeout=60)
    assert overlaps(name) == 0


@pytest.mark.parametrize("how", ["loop", "sleep"])
def test_abort_interrupts_a_run_that_has_lost_its_lock(pool, publish, proj, name, how, records):
    """Semantics 8: `abort` raises LockLost inside run()."""
    if (pool, how) == ("threads", "sleep"):
        pytest.skip("CPython cannot end a system call in a thread that is not the main one")
    with pytest.raises(LockLost, match="another client released or took it"):
        publish(proj.aborting, how).get(timeout=20)
    assert [entry["event"] for entry in records(name)] == ["start"]
    assert publish(proj.work, 0).get(timeout=20)["held"]


def test_abort_does_not_interrupt_a_retry_that_is_being_published(publish, proj, name, records):
    """Semantics 8 and 9: Celery drops the message of a task whose retry is interrupted."""
    publish(proj.losing_while_it_retries).get(timeout=40)
    assert [entry["event"] for entry in records(name)] == ["end"]


def test_a_loss_is_told_to_a_callable(publish, proj, name, records):
    """Semantics 8: lost is told."""
    assert publish(proj.losing).get(timeout=20) == {"lost": True, "held": False}
    assert name in [entry["key"] for entry in records("losses")]


@pytest.mark.parametrize("how", ["success", "failure", "Ignore", "Reject", "retry", "replace", "soft limit"])
def test_a_run_that_ends_frees_its_lock_at_once(publish, proj, name, how, records, await_free):
    """Semantics 5: released at once, however run() ends."""
    publish(proj.ending, how)
    wait_until(lambda: records(name, "end"), timeout=20, what="the run")
    await_free(name, timeout=5)
    assert publish(proj.work, 0).get(timeout=20)["held"]


def test_a_skipped_task_is_revoked_and_names_the_holder(publish, proj, name, hold):
    """Semantics 11: skip is visible and terminal."""
    with hold(name) as held:
        result = publish(proj.skipping)
        with pytest.raises(TaskRevokedError, match=rf"skipped: lock '{name}' is held by {held.owner}"):
            result.get(timeout=20)
        assert result.state == "REVOKED"
