"""`lock_from="publish"`: a duplicate is not published. No worker is needed to see that."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rlock import DuplicateTask
from tests.worker.awaiting import lock


def test_a_duplicate_is_not_published_and_gets_the_result_of_the_first(proj, name, queue, messages, holder):
    first = proj.once.apply_async((name,), queue=queue)
    second = proj.once.apply_async(kwargs={"name": name}, queue=queue)
    third = proj.once.s(name).set(queue=queue).delay()
    assert first.id == second.id == third.id
    assert [message["headers"]["id"] for message in messages(queue)] == [first.id]
    assert holder(name) == f"queued:{first.id}"


def test_duplicate_task_names_the_task_that_is_queued(proj, name, queue, messages):
    first = proj.once_or_raise.apply_async((name,), queue=queue)
    with pytest.raises(DuplicateTask) as error:
        proj.once_or_raise.apply_async((name,), queue=queue)
    assert (error.value.key, error.value.task_id) == (name, first.id)
    assert error.value.holder.endswith(f"/queued:{first.id}")
    assert pickle.loads(pickle.dumps(error.value)).args == error.value.args
    assert len(messages(queue)) == 1


def test_of_many_publishers_at_once_one_gets_through(proj, name, queue, messages):
    with ThreadPoolExecutor(10) as threads:
        results = list(threads.map(lambda _: proj.once.apply_async((name,), queue=queue), range(30)))
    assert len({result.id for result in results}) == 1
    assert len(messages(queue)) == 1


def test_a_call_with_other_arguments_is_no_duplicate(proj, name, queue, messages):
    for key in (name, f"{name}-2"):
        proj.once.apply_async((key,), queue=queue)
    assert len(messages(queue)) == 2


def test_a_key_that_an_rlock_holds_makes_no_duplicate(proj, name, queue, messages, hold, holder):
    """The task is published without the lock, and takes the key when it runs."""
    with hold(name):
        result = proj.once.apply_async((name,), queue=queue)
        assert holder(name) != f"queued:{result.id}"
    assert [message["headers"]["id"] for message in messages(queue)] == [result.id]
    assert holder(name) is None


def test_a_key_that_another_task_holds_makes_no_duplicate(proj, name, queue, messages, holder):
    first = proj.once.apply_async((name,), queue=queue)
    second = proj.once_or_raise.apply_async((name,), queue=queue)
    assert [message["headers"]["id"] for message in messages(queue)] == [second.id, first.id]
    assert holder(name) == f"queued:{first.id}"


@pytest.mark.parametrize("company", ["link", "link_error"])
def test_a_call_with_a_callback_is_always_published(proj, name, queue, messages, holder, company):
    """Otherwise its callback would never be called."""
    first = proj.once.apply_async((name,), queue=queue)
    second = proj.once.apply_async((name,), queue=queue, **{company: proj.other.si(f"{name}-linked")})
    assert second.id != first.id
    assert len(messages(queue)) == 2
    assert holder(name) == f"queued:{first.id}"


def test_a_lock_of_several_keys_is_taken_whole_or_not_at_all(proj, name, queue, hold, holder, messages):
    keys = [f"{name}-a", f"{name}-b", f"{name}-c"]
    publish = lambda: proj.work.apply_async(  # noqa: E731
        (name,), queue=queue, lock_from="publish", lock_key=keys
    )
    with hold(keys[2]):
        publish()
        assert [holder(key) for key in keys[:2]] == [None, None]
    result = publish()
    assert [holder(key) for key in keys] == [f"queued:{result.id}"] * 3
    assert publish().id == result.id
    assert len(messages(queue)) == 2


def test_a_queued_lock_names_its_task(proj, name, queue, locks):
    proj.once.apply_async((name,), queue=queue)
    assert locks.hget(lock(name), "@task").decode() == proj.once.name
