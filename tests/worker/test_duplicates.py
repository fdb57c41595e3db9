"""`lock_from="publish"`: a duplicate is not published. No worker is needed to see that."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rlock import DuplicateTask
from tests.unique.conftest import lock


def test_a_second_one_is_not_published_and_gets_the_first_ones_result(proj, name, idle, messages, holder):
    first = proj.once.apply_async((name,), queue=idle)
    second = proj.once.apply_async(kwargs={"name": name}, queue=idle)
    third = proj.once.s(name).set(queue=idle).delay()
    assert first.id == second.id == third.id
    assert [message["headers"]["id"] for message in messages(idle)] == [first.id]
    assert holder(name) == f"queued:{first.id}"


def test_with_raise_the_error_names_the_task_that_is_queued(proj, name, idle, messages):
    first = proj.once_or_raise.apply_async((name,), queue=idle)
    with pytest.raises(DuplicateTask) as error:
        proj.once_or_raise.apply_async((name,), queue=idle)
    assert (error.value.key, error.value.task_id) == (name, first.id)
    assert error.value.holder.endswith(f"/queued:{first.id}")
    assert pickle.loads(pickle.dumps(error.value)).args == error.value.args
    assert len(messages(idle)) == 1


def test_one_of_many_publishers_at_once_gets_through(proj, name, idle, messages):
    with ThreadPoolExecutor(10) as threads:
        results = list(threads.map(lambda _: proj.once.apply_async((name,), queue=idle), range(30)))
    assert len({result.id for result in results}) == 1
    assert len(messages(idle)) == 1


def test_other_arguments_are_no_duplicate(proj, name, idle, messages):
    for key in (name, f"{name}-2"):
        proj.once.apply_async((key,), queue=idle)
    assert len(messages(idle)) == 2


def test_a_key_that_an_rlock_holds_makes_no_duplicate(proj, name, idle, messages, hold, holder):
    """It is published without, and takes the key when it runs."""
    with hold(name):
        result = proj.once.apply_async((name,), queue=idle)
        assert holder(name) != f"queued:{result.id}"
    assert [message["headers"]["id"] for message in messages(idle)] == [result.id]
    assert holder(name) is None


def test_a_key_that_another_task_holds_makes_no_duplicate(proj, name, idle, messages, holder):
    first = proj.once.apply_async((name,), queue=idle)
    second = proj.once_or_raise.apply_async((name,), queue=idle)
    assert [message["headers"]["id"] for message in messages(idle)] == [second.id, first.id]
    assert holder(name) == f"queued:{first.id}"


@pytest.mark.parametrize("company", ["link", "link_error"])
def test_what_has_a_callback_is_always_published(proj, name, idle, messages, holder, company):
    """Nothing may be left hanging."""
    first = proj.once.apply_async((name,), queue=idle)
    second = proj.once.apply_async((name,), queue=idle, **{company: proj.other.si(f"{name}-linked")})
    assert second.id != first.id
    assert len(messages(idle)) == 2
    assert holder(name) == f"queued:{first.id}"


def test_a_lock_of_several_keys_is_taken_whole_or_not_at_all(proj, name, idle, hold, holder, messages):
    keys = [f"{name}-a", f"{name}-b", f"{name}-c"]
    publish = lambda: proj.work.apply_async(  # noqa: E731
        (name,), queue=idle, lock_from="publish", lock_key=keys
    )
    with hold(keys[2]):
        publish()
        assert [holder(key) for key in keys[:2]] == [None, None]
    result = publish()
    assert [holder(key) for key in keys] == [f"queued:{result.id}"] * 3
    assert publish().id == result.id
    assert len(messages(idle)) == 2


def test_the_lock_says_what_it_is_for(proj, name, idle, store):
    proj.once.apply_async((name,), queue=idle)
    assert store.hget(lock(name), "@task").decode() == proj.once.name
