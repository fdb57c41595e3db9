"""`lock_from="publish"`: the run takes the queued lock over, and frees it at its end."""

from __future__ import annotations

from datetime import datetime, timezone
from uuid import UUID

import pytest
from celery import states

from celery_rlock import DuplicateTask
from tests.support.processes import wait_until
from tests.worker.awaiting import await_state, lock

pytestmark = pytest.mark.usefixtures("fleet")


def test_the_run_takes_the_lock_over(proj, name, holder, await_start, await_free, locks, lease_of, tell):
    """Semantics 14: with a new token; the lease is the run's, not the queue's any more."""
    result = proj.once.apply_async((name,), {"until_told": True}, countdown=0.7)
    assert holder(name) == f"queued:{result.id}"
    queued_token = int(locks.hget(lock(name), "@token"))
    start = await_start(name)
    assert holder(name).endswith(f":{result.id}")
    assert not holder(name).startswith("queued:")
    assert lease_of(name) <= 30
    assert start["token"] > queued_token
    tell(name)
    assert result.get(timeout=20)["id"] == result.id
    await_free(name)


def test_a_duplicate_of_a_running_task_gets_its_result(proj, name, await_start, records, tell):
    first = proj.once.delay(name, until_told=True)
    await_start(name)
    second = proj.once.delay(name)
    with pytest.raises(DuplicateTask) as error:
        proj.once.apply_async((name,), lock_duplicate="raise")
    tell(name)
    assert error.value.task_id == second.id == first.id
    assert second.get(timeout=20)["id"] == first.id
    assert len(records(name)) == 2


def test_after_the_end_of_a_run_the_next_call_is_published(proj, name, await_free):
    ids = set()
    for _ in range(3):
        ids.add(proj.once.delay(name).get(timeout=20)["id"])
        await_free(name)
    assert len(ids) == 3


def test_a_duplicate_of_a_resting_task_gets_its_result(proj, name, holder):
    first = proj.once.apply_async((name,), lock_hold_at_least=60)
    first.get(timeout=20)
    wait_until(lambda: holder(name) == f"rest:{first.id}", timeout=20, what="the rest")
    assert proj.once.delay(name).get(timeout=20)["id"] == first.id


def test_a_task_that_was_published_without_the_lock_takes_it_when_it_runs(
    proj, name, hold, overlaps, records
):
    with hold(name):
        results = [proj.once.delay(name, 0.1) for _ in range(2)]
        assert len({result.id for result in results}) == 2
        assert records(name) == []
    for result in results:
        assert result.get(timeout=20)["held"]
    assert overlaps(name) == 0


def test_a_task_that_is_sent_by_name_takes_the_lock_when_it_runs(proj, name, overlaps, spans):
    """Semantics 1: `send_task` does not see the task's options; its runs are exclusive all the same."""
    results = [proj.once.delay(name, 0.2)]
    results += [proj.app.send_task(proj.once.name, (name, 0.2)) for _ in range(4)]
    results += [proj.work.delay(name, 0.2)]
    for result in results:
        assert result.get(timeout=30)["held"]
    assert len(spans(name)) == 6
    assert overlaps(name) == 0


def test_the_tasks_own_retry_keeps_the_key(proj, name, holder, await_start, lease_of, await_free):
    """The lease is the countdown plus `lock_queue_ttl`."""
    first = proj.once.apply_async((name,), {"retry": 1}, lock_queue_ttl=100)
    await_start(name)
    wait_until(lambda: holder(name) == f"queued:{first.id}", timeout=20, what="the retry to have the key")
    assert 30 < lease_of(name) <= 101
    assert proj.once.delay(name).id == first.id
    assert first.get(timeout=30)["retries"] == 2
    await_free(name)


def test_a_retry_with_other_arguments_frees_the_key_of_the_old_ones(proj, name, await_start, await_free):
    """The next call is published, and runs before the retry."""
    first = proj.once_elsewhere.delay(name, f"{name}-other")
    await_start(name)
    await_free(name)
    second = proj.once_elsewhere.delay(name, f"{name}-third")
    assert second.id != first.id
    for result in (first, second):
        assert result.get(timeout=30)["retries"] == 1
    for key in (name, f"{name}-other", f"{name}-third"):
        await_free(key)


def test_a_retry_that_shares_a_key_keeps_that_one_only(proj, name, holder, await_start, await_free):
    first = proj.once_partly_elsewhere.delay(name, f"{name}-other")
    await_start(name)
    await_free(f"{name}-other")
    wait_until(lambda: holder(name) == f"queued:{first.id}", timeout=20, what="the retry to have the key")
    assert first.get(timeout=30)["retries"] == 1
    await_free(name)


def test_a_retry_without_a_countdown_runs_too(proj, name, spans, await_free):
    result = proj.once.delay(name, 0.0, retry=0)
    assert result.get(timeout=30)["retries"] == 2
    assert len(spans(name)) == 3
    await_free(name)


def test_no_other_task_runs_while_a_task_waits_for_its_retry(proj, name, starts, await_start):
    first = proj.once.delay(name, 0.0, retry=0.5)
    await_start(name)
    second = proj.app.send_task(proj.once.name, (name,))
    first.get(timeout=30)
    second.get(timeout=30)
    assert starts(name) == [first.id] * 3 + [second.id]


def test_a_busy_retry_is_always_published(proj, name, await_start, overlaps, tell):
    """The retry is no duplicate, though another call of the same task has the key."""
    first = proj.once_or_raise.delay(name, until_told=True)
    await_start(name)
    second = proj.app.send_task(proj.once_or_raise.name, (name,))
    await_state(second, states.RETRY)
    tell(name)
    assert first.get(timeout=20)["id"] == first.id
    assert second.get(timeout=20)["id"] == second.id
    assert overlaps(name) == 0


VALUES = [
    (1, 2),
    {"b": [1], "a": None},
    {1: "a", 2: {3: "b"}},
    datetime(2026, 1, 2, tzinfo=timezone.utc),
    UUID(int=7),
    b"bytes",
    1.0,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_the_run_takes_over_the_key_of_any_argument(proj, name, value, locks):
    """Semantics 15: the caller's value and what the message makes of it have one key."""
    before = set(locks.keys("rlock:*.once_of:*"))
    proj.once_of.delay(name, value).get(timeout=20)
    left = set(locks.keys("rlock:*.once_of:*")) - before
    assert not [key for key in left if locks.type(key) == b"hash"], "the queued lock was not taken over"
