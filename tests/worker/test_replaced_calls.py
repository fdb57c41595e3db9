"""`lock_busy="replace"`: who is replaced, and what becomes of the replaced calls and of what follows them."""

from __future__ import annotations

import os
import signal

import pytest
from celery import chain, chord, states
from celery.exceptions import TaskRevokedError

from celery_rlock import ConfigurationError, LockBusy
from tests.support.fleet import UnackedMessage, kill, redelivered_after
from tests.support.processes import wait_until
from tests.worker.awaiting import await_log, await_state

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.fixture
def started(records):
    def started(name, result):
        wait_until(
            lambda: any(entry["id"] == result.id for entry in records(name, "start")),
            timeout=30,
            what=f"the start of {result.id}",
        )
        return result

    return started


def revoked(result, by):
    with pytest.raises(TaskRevokedError, match=f"replaced by task {by.id}"):
        result.get(timeout=40)
    assert result.state == states.REVOKED


def test_the_rest_of_a_chain_does_not_run(proj, name, started, records):
    """Semantics 20: a replaced member ends its chain as a revoked one does."""
    older = chain(proj.restarting.s(name, "long"), proj.after.s(name)).apply_async()
    started(name, older.parent)
    newer = proj.restarting.delay(name)
    newer.get(timeout=40)
    revoked(older.parent, newer)
    chain(proj.restarting.s(name), proj.after.s(name)).apply_async().get(timeout=40)
    assert [entry["value"] for entry in records(name, "after")] == ["short"]


def test_a_chord_ends_in_its_errback(proj, name, started, records):
    member = proj.restarting.s(name, "long").set(task_id=f"member-{name}")
    body = proj.after.s(name).on_error(proj.on_error.s(name=name))
    chord([member, proj.work.s(f"{name}-other", 0)])(body)
    started(name, proj.restarting.AsyncResult(f"member-{name}"))
    proj.restarting.delay(name).get(timeout=40)
    wait_until(lambda: records(name, "errback"), timeout=30, what="the errback")
    assert records(name, "after") == []


def test_a_run_of_another_task_is_waited_for(proj, name, started, tell, starts):
    """Semantics 20: a call ends no run of a task of another name."""
    other = started(name, proj.restarting_another.delay(name, "stubborn"))
    newer = proj.restarting.delay(name)
    await_state(newer, states.RETRY)
    tell(name)
    assert other.get(timeout=40) == "stubborn"
    assert newer.get(timeout=40) == "short"


def test_other_code_is_waited_for(proj, name, hold):
    """Semantics 20: an RLock of another process."""
    with hold(name) as held:
        newer = proj.restarting.delay(name)
        await_state(newer, states.RETRY)
        held.extend(30)  # it still holds the lock
    newer.get(timeout=40)


def test_a_key_that_rests_is_waited_for(proj, name):
    first = proj.restarting.apply_async((name,), lock_hold_at_least=2)
    first.get(timeout=20)
    assert proj.restarting.delay(name).get(timeout=40) == "short"
    assert first.state == states.SUCCESS


def test_a_task_that_calls_itself_does_not_end_itself(proj, name):
    """Semantics 2 and 20."""
    assert proj.calling_itself.delay(name).get(timeout=30) == ["inner"] * 3


def test_several_keys_end_each_holder(proj, name, started, starts):
    one = started(name, proj.restarting_on_both.delay(name, f"{name}-1", f"{name}-2", "long"))
    two = started(name, proj.restarting_on_both.delay(name, f"{name}-3", f"{name}-4", "long"))
    newer = proj.restarting_on_both.delay(name, f"{name}-1", f"{name}-3")
    newer.get(timeout=60)
    revoked(one, newer)
    revoked(two, newer)


def test_a_callable_may_choose_it(proj, name, started):
    older = started(name, proj.restarting_by_choice.delay(name, "long"))
    newer = proj.restarting_by_choice.delay(name)
    newer.get(timeout=40)
    revoked(older, newer)


def test_one_call_may_choose_it(proj, name, started):
    """Semantics 20: a run that does not listen is terminated after it was told."""
    older = started(name, proj.restarted_by_one_call.delay(name, "long"))
    newer = proj.restarted_by_one_call.apply_async((name,), lock_busy="replace")
    newer.get(timeout=60)
    revoked(older, newer)


def test_a_callable_cannot_choose_it_with_a_limit(proj, name, started, records):
    for _ in range(2):
        proj.restarting_one_of_two.delay(name, 3)
    wait_until(lambda: len(records(name, "start")) == 2, timeout=30, what="both to run")
    with pytest.raises(ConfigurationError, match="lock_limit"):
        proj.restarting_one_of_two.delay(name).get(timeout=30)


def test_the_newcomer_gives_the_run_time_in_place_first(proj, name, started):
    """`lock_wait` comes before `lock_busy`, so a run that ends in that time is not replaced."""
    older = started(name, proj.restarting.delay(name, "stubborn"))
    newer = proj.restarting.apply_async((name,), lock_wait=30)
    proj.app.backend.client.set(f"told:{name}", 1, ex=600)
    assert older.get(timeout=40) == "stubborn"
    newer.get(timeout=40)


def test_a_call_that_has_no_attempt_left_ends_no_run(proj, name, started, tell):
    older = started(name, proj.restarting.delay(name, "stubborn"))
    with pytest.raises(LockBusy):
        proj.restarting.apply_async((name,), lock_max_attempts=1).get(timeout=30)
    tell(name)
    assert older.get(timeout=40) == "stubborn"


def test_a_call_that_wins_its_race_is_a_success(proj, name, started, tell):
    """Semantics 20: a run that ends before it is told has ended well."""
    older = started(name, proj.restarting.delay(name, "stubborn"))
    tell(name)
    newer = proj.restarting.delay(name)
    newer.get(timeout=40)
    assert older.get(timeout=40) == "stubborn"


def test_a_redelivered_message_of_a_replaced_run_is_dropped(proj, name, started, starts):
    """Semantics 10 and 20: it neither runs nor replaces the newer call."""
    older = started(name, proj.restarting_late.delay(name, "stubborn"))
    message = UnackedMessage(proj.app, older.id)
    message.redeliver()
    newer = proj.restarting_late.delay(name)
    revoked(older, newer)
    newer.get(timeout=40)
    wait_until(message.is_acknowledged, timeout=40, what="the redelivered message to be dropped")
    assert starts(name) == [older.id, newer.id]


@pytest.mark.parametrize("task", ["restarting", "restarting_late", "restarting_lost"])
def test_a_killed_child_is_replaced_once(proj, name, records, started, starts, task):
    """Semantics 6 and 20: its process dies after it was told, and the redelivered message does not run."""
    task = getattr(proj, task)
    older = started(name, task.delay(name, "stubborn"))
    newer = task.delay(name)
    wait_until(lambda: records(name, "replaced"), timeout=30, what="the run to be told")
    os.kill(records(name, "start")[0]["pid"], signal.SIGKILL)
    assert newer.get(timeout=60) == "short"
    wait_until(lambda: older.state in states.READY_STATES, timeout=40, what="its end")
    if task is proj.restarting_lost:
        revoked(older, newer)
    assert starts(name) == [older.id, newer.id]


def test_a_dead_worker_delays_the_newcomer_by_one_lease(proj, start_fleet, name, queue, started, starts):
    """Semantics 7, 10 and 20: its message comes back, finds that it was replaced, and ends as such."""
    conf = {"rlock_ttl": 2, **redelivered_after(4)}
    with start_fleet(2, queues=[queue], conf=conf, concurrency=1) as workers:
        older = started(name, proj.restarting_late.apply_async((name, "stubborn"), queue=queue))
        newer = proj.restarting_late.apply_async((name,), queue=queue)
        await_log(workers, f"is replaced by task {newer.id}")
        [owner] = [worker for worker in workers if f"is replaced by task {newer.id}" in worker.log]
        kill(owner)
        assert newer.get(timeout=60) == "short"
        revoked(older, newer)
        assert starts(name) == [older.id, newer.id]


def test_a_newcomer_whose_worker_dies_comes_back(proj, start_fleet, name, queue, started, starts, tell):
    """Semantics 9 and 20: the run that it told to end ends, and the newcomer runs when it is redelivered."""
    other = f"{queue}-other"
    conf = redelivered_after(4)
    with (
        start_fleet(1, queues=[queue], conf=conf, concurrency=2) as [holder],
        start_fleet(1, queues=[other], conf=conf, concurrency=2) as [doomed],
    ):
        older = started(name, proj.restarting_late.apply_async((name, "stubborn"), queue=queue))
        newer = proj.restarting_late.apply_async((name,), queue=other)
        await_log([holder], f"is replaced by task {newer.id}")
        kill(doomed)
        tell(name)
        revoked(older, newer)
        with start_fleet(1, queues=[other], conf=conf, concurrency=2):
            assert newer.get(timeout=60) == "short"
        assert starts(name) == [older.id, newer.id]


def test_a_stream_of_calls_ends_with_the_last_one(proj, name, starts, records):
    """Semantics 1 and 20: each call replaces those before it, no two runs overlap, and the last one runs."""
    calls = []
    for _ in range(12):
        calls.append(proj.restarting.delay(name, "long"))
        # Two workers may take two calls in another order than they were published.
        wait_until(
            lambda: calls[-1].state != states.PENDING or calls[-1].id in starts(name),
            timeout=30,
            what="a worker to try the call",
        )
    last = proj.restarting.delay(name)
    assert last.get(timeout=90) == "short"
    for call in calls:
        with pytest.raises(TaskRevokedError):
            call.get(timeout=60)
    order = [entry["event"] for entry in records(name) if entry["event"] in {"start", "end"}]
    assert order == ["start", "end"] * (len(order) // 2)
    assert starts(name)[-1] == last.id


def test_a_retry_of_an_older_call_replaces_nothing(proj, name, started, tell):
    """Semantics 20: it may be older than the run that it finds."""
    newer = started(name, proj.restarting.delay(name, "stubborn"))
    retry = proj.restarting.apply_async((name,), retries=1)
    await_state(retry, states.RETRY)
    tell(name)
    assert newer.get(timeout=40) == "stubborn"
    assert retry.get(timeout=40) == "short"


def test_a_busy_worker_ends_its_only_run(proj, doomed, name, queue, started, starts):
    """Semantics 20: the newcomer need not wait for a process to find the run that it replaces."""
    older = started(name, proj.restarting.apply_async((name, "long"), queue=queue))
    newer = proj.restarting.apply_async((name,), queue=queue)
    assert newer.get(timeout=40) == "short"
    revoked(older, newer)
    assert starts(name) == [older.id, newer.id]


def test_direct_and_eager_calls_fail(proj, name, started, tell):
    """They have no message to wait with."""
    older = started(name, proj.restarting.delay(name, "stubborn"))
    with pytest.raises(LockBusy):
        proj.restarting(name)
    assert isinstance(proj.restarting.apply((name,)).result, LockBusy)
    tell(name)
    assert older.get(timeout=40) == "stubborn"
