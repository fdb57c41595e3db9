"""`lock_duplicate="replace"`: the newest of the pending calls runs, and the others end as REVOKED."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import pytest
from celery import chord, states
from celery.exceptions import TaskRevokedError

from celery_rlock import signals
from celery_rlock.core.lease import Lease
from celery_rlock.core.pending_call import PendingCall
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner, new_delivery
from celery_rlock.server.redis_keys import RedisKeys
from tests.support.fleet import UnackedMessage, redelivered_after
from tests.support.outages import unreachable_url
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, await_log, lock


@pytest.fixture(autouse=True)
def tell_it(tell, name):
    """Ends the runs that wait until they are told."""
    yield
    tell(name)


@pytest.fixture
def versions(records):
    """The versions that ran under a name, in this order."""
    return lambda name: [entry["version"] for entry in records(name, "version")]


@pytest.fixture
def run_of(redis_for_locks):
    """Inside the block, a run of the task has the lock."""

    @contextmanager
    def hold(task, task_id, name):
        owner = Owner("worker", new_delivery(), task_id)
        server = RedisLockServer(redis_for_locks.client())
        lease = Lease(server, RedisKeys.of(name), owner, new_delivery, task=task.name)
        assert lease.enter(60) is None
        yield
        assert lease.leave()

    return hold


@pytest.fixture
def superseded():
    """What the signal `lock_superseded` has told: pairs of task ids, the older and the later."""
    told = []

    def receive(task_id, by, **_):
        told.append((task_id, by))

    signals.lock_superseded.connect(receive)
    yield told
    signals.lock_superseded.disconnect(receive)


def is_superseded(result, by):
    stored = result.backend.get_task_meta(result.id, cache=False)
    return stored["status"] == states.REVOKED and f"superseded by {by.id}" in str(stored["result"])


def test_the_newest_pending_call_runs_and_the_older_ones_end_as_revoked(
    proj, fleet, name, await_start, tell, pending, versions, overlaps, superseded
):
    """Semantics 19: also for a caller that waits in `get()`, before any worker has seen the message."""
    proj.save.delay(name, 0, until_told=True)
    await_start(name)
    first, second, third = (proj.save.delay(name, version) for version in (1, 2, 3))
    assert pending(name) == [third.id]
    assert is_superseded(first, by=second)
    assert is_superseded(second, by=third)
    with pytest.raises(TaskRevokedError, match=f"superseded by {second.id}"):
        first.get(timeout=1)
    tell(name)
    assert third.get(timeout=SOON)["version"] == 3
    assert superseded == [(first.id, second.id), (second.id, third.id)]
    time.sleep(0.3)
    assert (versions(name), overlaps(name)) == ([0, 3], 0)
    assert is_superseded(first, by=second)


def test_a_superseded_message_is_dropped_when_it_arrives(proj, name, queue, start_fleet, versions, messages):
    """Semantics 19: also the events say REVOKED."""
    results = [proj.save.apply_async((name, version), queue=queue) for version in range(5)]
    assert len(messages(queue)) == 5
    with start_fleet(1, queues=[queue]) as [worker]:
        assert results[-1].get(timeout=SOON)["version"] == 4
        await_log([worker], f"does not run: superseded by {results[4].id}")
    assert versions(name) == [4]
    assert all(is_superseded(older, by=later) for older, later in pairwise(results))


def test_a_superseded_message_is_dropped_when_it_is_delivered_again(proj, name, queue, start_fleet, versions):
    """Semantics 10 and 19."""
    with start_fleet(1, queues=[queue], conf=redelivered_after(60)) as [worker]:
        first = proj.save_late.apply_async((name, 1), queue=queue, countdown=6)
        await_log([worker], f"[{first.id}] received")
        message = UnackedMessage(proj.app, first.id)
        second = proj.save_late.apply_async((name, 2), queue=queue)
        message.redeliver()
        second.get(timeout=SOON)
        wait_until(
            lambda: worker.log.count(f"[{first.id}] does not run") == 2,
            timeout=SOON,
            what="both to be dropped",
        )
    assert versions(name) == [2]
    assert is_superseded(first, by=second)


def test_a_countdown_makes_a_debounce(proj, fleet, name, versions):
    """Semantics 19: one run, the last, a while after the last call."""
    for version in range(6):
        last = proj.save.apply_async((name, version), countdown=1)
        made = time.time()
        time.sleep(0.2)
    last.get(timeout=SOON)
    assert versions(name) == [5]
    assert time.time() - made >= 0.9


def test_a_stream_of_calls_does_not_postpone_the_run_for_ever(proj, fleet, name, records):
    """Semantics 19: at most until `lock_queue_ttl` after the first of them."""
    began = time.time()
    while time.time() < began + 5:
        last = proj.save.apply_async((name, time.time()), countdown=1, lock_queue_ttl=1.5)
        time.sleep(0.1)
    last.get(timeout=SOON)
    runs = records(name, "version")
    assert len(runs) >= 3
    assert all(entry["at"] - entry["version"] < 5 for entry in runs)
    assert runs[-1]["version"] == max(entry["version"] for entry in runs)


def test_beyond_that_a_queued_call_runs_though_a_later_one_is_made(proj, name, queue, start_fleet, versions):
    """No worker took it in time: it is not superseded any more, or it never came."""
    first = proj.save.apply_async((name, 1), queue=queue, lock_queue_ttl=0.3)
    second = proj.save.apply_async((name, 2), queue=queue, lock_queue_ttl=30, countdown=0)
    assert is_superseded(first, by=second)
    kept = proj.save.apply_async((f"{name}-2", 1), queue=queue, lock_queue_ttl=30, countdown=0.1)
    assert kept.state == states.PENDING
    with start_fleet(1, queues=[queue]):
        second.get(timeout=SOON)
        kept.get(timeout=SOON)
    assert versions(name) == [2]


def test_a_call_that_cannot_be_published_supersedes_nothing(proj, name, queue, pending, fleet, start_fleet):
    first = proj.save.apply_async((name, 1), queue=queue)
    with proj.app.connection_for_write(url=unreachable_url()) as connection:
        producer = proj.app.amqp.Producer(connection, auto_declare=False)
        with pytest.raises(Exception, match="refused"):
            proj.save.apply_async((name, 2), queue=queue, producer=producer, retry=False)
    assert pending(name) == [first.id]
    with start_fleet(1, queues=[queue]):
        assert first.get(timeout=SOON)["version"] == 1


def test_a_run_that_begins_before_its_publisher_says_so_supersedes_the_older_call(
    proj, name, queue, start_fleet, versions, pending, monkeypatch
):
    """Semantics 19: a worker may be faster than the publisher."""
    with start_fleet(1, queues=[queue]):
        first = proj.save.apply_async((name, 1), queue=queue, countdown=60)
        queue_call = PendingCall.queue

        def queue_later(call, lease):
            wait_until(lambda: versions(name), timeout=SOON, what="the run")
            return queue_call(call, lease)

        monkeypatch.setattr(PendingCall, "queue", queue_later)
        monkeypatch.setattr("celery_rlock.core.pending_call.RESERVATION", 60)  # however slow the machine is
        second = proj.save.apply_async((name, 2), queue=queue)
        assert second.get(timeout=SOON)["version"] == 2
        with pytest.raises(TaskRevokedError, match=f"superseded by {second.id}"):
            first.get(timeout=SOON)
    assert (versions(name), pending(name)) == ([2], [])


def test_of_many_publishers_at_once_the_last_one_runs(proj, name, queue, start_fleet, pending, versions):
    with ThreadPoolExecutor(10) as threads:
        results = list(
            threads.map(lambda version: proj.save.apply_async((name, version), queue=queue), range(40))
        )
    [left] = pending(name)
    ended = [result for result in results if result.state == states.REVOKED]
    assert {result.id for result in results} - {result.id for result in ended} == {left}
    with start_fleet(1, queues=[queue]):
        [runs] = [result for result in results if result.id == left]
        assert runs.get(timeout=SOON)["version"] is not None
    assert len(versions(name)) == 1


def test_a_member_of_a_canvas_is_never_superseded(proj, name, queue, start_fleet, versions, hold):
    body = proj.other.si(f"{name}-body").set(queue=queue)
    group = [proj.save.si(name, version).set(queue=queue) for version in (1, 2)]
    whole = chord(group, body).apply_async()
    last = proj.save.apply_async((name, 3), queue=queue)
    with start_fleet(1, queues=[queue]):
        last.get(timeout=SOON)
        whole.get(timeout=SOON)
    assert sorted(versions(name)) == [1, 2, 3]


def test_a_retry_is_never_superseded(proj, fleet, name, records, versions):
    """Semantics 10: `self.retry()` always runs."""
    first = proj.save.delay(name, 1, retry=1)
    wait_until(lambda: records(name, "end"), timeout=SOON, what="the first run")
    second = proj.save.delay(name, 2)
    assert second.get(timeout=SOON)["version"] == 2
    assert first.get(timeout=SOON)["retries"] == 1
    assert sorted(versions(name)) == [1, 1, 2]


def test_an_id_that_was_superseded_may_be_used_again(proj, name, queue, start_fleet, versions):
    for version, task_id in enumerate(["a", "b", "a"]):
        proj.save.apply_async((name, version), queue=queue, task_id=f"{name}-{task_id}")
    with start_fleet(1, queues=[queue]):
        wait_until(lambda: 2 in versions(name), timeout=SOON, what="the last call")


def test_without_lock_pending_the_queued_call_is_replaced_but_not_the_running_one(
    proj, fleet, name, queue, start_fleet, await_start, tell, versions
):
    """A call during the run is a duplicate of the run, as it is without `replace`."""
    told = {"until_told": True}
    first, second = (proj.save_alone.apply_async((name, i), told, queue=queue) for i in (1, 2))
    assert is_superseded(first, by=second)
    with start_fleet(1, queues=[queue], concurrency=2):
        await_start(name)
        assert proj.save_alone.apply_async((name, 3), queue=queue).id == second.id
        tell(name)
        second.get(timeout=SOON)
    assert versions(name) == [2]


def test_a_superseded_call_that_looks_at_the_lock_is_no_run(proj, fleet, name, queue, pending, run_of):
    """It has the lock for a moment before it ends. A call of that moment must not count as its duplicate."""
    first, second = (proj.save_alone.apply_async((name, version), queue=queue) for version in (1, 2))
    assert is_superseded(first, by=second)
    with run_of(proj.save_alone, first.id, name):
        third = proj.save_alone.apply_async((name, 3), queue=queue)
    assert pending(name) == [third.id]
    assert is_superseded(second, by=third)
    with run_of(proj.save_alone, third.id, name):
        assert proj.save_alone.apply_async((name, 4), queue=queue).id == third.id


def test_with_until_start_runs_need_no_lock(proj, fleet, name, await_start, tell, versions):
    proj.save_beside.delay(name, 1, until_told=True)
    await_start(name)
    assert proj.save_beside.delay(name, 2).get(timeout=SOON)
    tell(name)
    assert versions(name) == [1, 2]


def test_several_keys_are_superseded_together(proj, name, queue, pending):
    both = lambda other, version: proj.save_both.apply_async((name, other, version), queue=queue)  # noqa: E731
    first, second = both(f"{name}-b", 1), both(f"{name}-b", 2)
    assert is_superseded(first, by=second)
    third = both(f"{name}-c", 3)
    assert third.state == states.PENDING
    assert pending(f"{name}-b") == [second.id]


def test_a_waiting_call_that_is_superseded_leaves_the_line_at_once(
    proj, fleet, name, hold, waiters, versions, locks
):
    """It does not take the turn of the newest call."""
    with hold(name):
        first = proj.save.apply_async((name, 1), lock_backoff=60, lock_backoff_max=60)
        waiters.await_count(name, 1)
        second = proj.save.apply_async((name, 2), lock_backoff=60, lock_backoff_max=60)
        wait_until(
            lambda: [place.rpartition(":")[2] for place in waiters(name)] == [second.id],
            timeout=SOON,
            what="only the newest to wait",
        )
        assert is_superseded(first, by=second)
    second.get(timeout=SOON)
    assert versions(name) == [2]
    assert locks.ttl(f"{lock(name)}:superseded:{first.id}") > 0
