"""A call that is being published, on every kind of server: it has a place for each of its keys, or none."""

from __future__ import annotations

import threading

import pytest

from celery_rlock.core.pending_call import PendingCall, give_up_places
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.replies import PendingRequest
from tests.support.processes import wait_until

PENDING = "rlock:{%s}:pending"


@pytest.fixture
def call(lock_server):
    """Makes calls by their ids. Each key has a place for one call."""

    def make(task_id, *keys, limit=1, on=lock_server, **options):
        request = PendingRequest(task_id, f"attempt-{task_id}", "w", "task", limit, **options)
        return PendingCall(on, [on.redis_keys(key) for key in keys or ("k",)], request)

    return make


@pytest.fixture
def in_places(redis):
    """The ids of the calls that have a place for a key."""
    return lambda key="k": sorted(field.decode() for field in redis.hkeys(PENDING % key))


def test_a_call_reserves_its_place_and_is_queued_in_it(call, in_places):
    """Semantics 19."""
    first = call("a")
    assert (first.reserve(), first.is_reserved, in_places()) == ([], True, ["a"])
    [(redis_keys, queued)] = first.queue(60)
    assert (redis_keys.key, queued.is_queued) == ("k", True)
    second = call("b")
    [busy] = second.reserve()
    assert (busy.owner.task_id, second.is_reserved, in_places()) == ("a", False, ["a"])


def test_a_call_that_is_withdrawn_has_no_place(call, in_places):
    first = call("a")
    first.reserve()
    first.withdraw()
    assert (first.is_reserved, first.queue(60), in_places()) == (False, [], [])


def test_a_call_that_cannot_have_all_places_has_none(call, in_places):
    other = call("a", "j")
    other.reserve()
    other.queue(60)
    both = call("b", "i", "j", "k")
    [busy] = both.reserve()
    assert (busy.redis_keys.key, both.is_reserved) == ("j", False)
    assert [in_places(key) for key in "ijk"] == [[], ["a"], []]


@pytest.mark.parametrize("is_published", [True, False])
def test_a_call_waits_until_the_call_in_the_last_place_is_published_or_not(call, in_places, is_published):
    """Semantics 19: a call is dropped only for another one that is certain to come."""
    first, second, answers = call("a"), call("b"), []
    first.reserve()
    thread = threading.Thread(target=lambda: answers.append(second.reserve()))
    thread.start()
    thread.join(0.3)
    assert answers == []
    if is_published:
        first.queue(60)
    else:
        first.withdraw()
    thread.join(20)
    [busy] = answers
    assert [each.owner.task_id for each in busy] == ["a"] * is_published
    assert second.is_reserved is not is_published
    assert in_places() == ["a" if is_published else "b"]


def test_the_earliest_end_of_all_keys_counts(call):
    """Semantics 19: a stream of calls cannot postpone a run for ever."""
    first = call("a", "i", replace=True, postpone=5)
    first.reserve()
    first.queue(60)
    later = call("b", "h", "i", replace=True, postpone=500)
    assert later.reserve() == []
    assert 0 < later.postponable <= 5
    assert call("c", "other").postponable is None


def test_a_server_without_an_answer_takes_no_place(call, through_proxy, proxy, server):
    first = call("a", on=through_proxy)
    assert first.reserve() == []
    first.withdraw()
    proxy.refuse()
    with pytest.raises(LockUnavailable):
        first.reserve()
    assert not first.is_reserved
    proxy.accept()
    wait_until(lambda: not server.client().exists(PENDING % "k"), what="the place to be free")


def test_a_place_is_given_up_when_the_server_answers_again(call, through_proxy, proxy, server, caplog):
    """The next call would count on a run that does not come."""
    first = call("a", on=through_proxy)
    first.reserve()
    first.queue(600)
    proxy.refuse()
    give_up_places(through_proxy, [through_proxy.redis_keys("k")], "a")
    assert "could not give up the place of task a" in caplog.text
    assert caplog.records[-1].key == "k"
    assert server.client().hexists(PENDING % "k", "a")
    proxy.accept()
    wait_until(lambda: not server.client().exists(PENDING % "k"), timeout=20, what="the place to be free")


def test_a_key_of_another_program_keeps_no_other_place(call, lock_server, redis, in_places, caplog):
    redis.set(PENDING % "i", "text")
    first = call("a", "j")
    first.reserve()
    first.queue(600)
    give_up_places(lock_server, [lock_server.redis_keys(key) for key in "ij"], "a")
    assert "task a has no place among the pending calls" in caplog.text
    assert in_places("j") == []
