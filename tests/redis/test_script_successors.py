"""What a task has before its run and after: `queued:` and `rest:` in the place of a delivery."""

from __future__ import annotations

import time

import pytest

from tests.lua.conftest import DONE, LOCK, TOKEN, WAITERS
from tests.lua.test_wait import listening


def owners(redis):
    return [field for field in redis.hkeys(LOCK) if not field.startswith("@")]


def test_a_run_takes_over_what_was_queued_for_it(verbs, redis):
    """In one step: a new token, the run's worker and its lease."""
    _, queued = verbs.acquire("queued:a", ttl=60000, worker="publisher")
    status, token = verbs.acquire("1:a", ttl=5000, worker="w")
    assert (status, int(token) > int(queued)) == (1, True)
    assert owners(redis) == ["1:a"]
    assert redis.hget(LOCK, "@worker") == "w"
    assert redis.pttl(LOCK) <= 5000


def test_to_take_over_twice_is_as_good_as_once(verbs, redis):
    """Semantics 4: the reply was lost."""
    verbs.acquire("queued:a")
    assert verbs.acquire("1:a") == verbs.acquire("1:a")
    assert owners(redis) == ["1:a"]


def test_nobody_else_takes_over_what_is_queued(verbs, redis):
    verbs.acquire("queued:a", task="proj.once")
    for owner in ("1:b", "queued:b", "rest:a:b"):
        assert verbs.acquire(owner)[:5][0] == 0
    assert verbs.acquire("1:b")[2:5] == ["queued:a", "w", "proj.once"]
    assert owners(redis) == ["queued:a"]


def test_who_wants_to_enter_again_does_not_take_over(verbs, redis):
    """Depth 2 is for a run that has lost its lock meanwhile: its retry has it, not the run."""
    verbs.acquire("queued:a")
    assert verbs.acquire("1:a", depth=2)[0] == 0
    assert owners(redis) == ["queued:a"]


def test_a_second_delivery_does_not_take_over_from_the_first(verbs, redis):
    """Semantics 2 and 10."""
    verbs.acquire("queued:a")
    verbs.acquire("1:a")
    assert verbs.acquire("2:a")[0] == 0
    assert owners(redis) == ["1:a"]
    assert redis.hget(LOCK, "@copy") == "1"


def test_an_older_token_goes_before_the_queued_one_and_that_before_the_runs(verbs, redis):
    """Semantics 14: also when the server's clock went back."""
    ahead = (int(time.time()) + 3600) * 1_000_000
    redis.set(TOKEN, ahead)
    queued = int(verbs.acquire("queued:a")[1])
    run = int(verbs.acquire("1:a")[1])
    assert ahead < queued < run


@pytest.mark.parametrize("heir", ["queued:a", "rest:a"])
def test_the_heir_has_the_key_after_its_owner(verbs, redis, heir):
    _, token = verbs.acquire("1:a", ttl=5000)
    assert verbs.release("1:a", heir=heir, lease=60000) == 1
    assert owners(redis) == [heir]
    assert 5000 < redis.pttl(LOCK) <= 60000
    assert redis.hget(LOCK, "@token") == token


@pytest.mark.parametrize("heir", ["queued:a", "rest:a"])
def test_to_leave_it_to_the_heir_twice_changes_nothing(verbs, redis, heir):
    """Semantics 4: the reply was lost."""
    verbs.acquire("1:a")
    verbs.release("1:a", heir=heir, lease=60000)
    before = redis.hgetall(LOCK)
    assert verbs.release("1:a", heir=heir, lease=90000) == -1
    assert redis.hgetall(LOCK) == before
    assert redis.pttl(LOCK) <= 60000


def test_a_lease_of_an_heir_may_be_shorter_than_the_owners(verbs, redis):
    verbs.acquire("1:a", ttl=60000)
    verbs.release("1:a", heir="rest:a", lease=300)
    assert redis.pttl(LOCK) <= 300


def test_an_inner_release_has_no_heir(verbs, redis):
    verbs.acquire("1:a")
    verbs.acquire("1:a", depth=2)
    assert verbs.release("1:a", depth=1, heir="rest:a", lease=60000) == 1
    assert owners(redis) == ["1:a"]


def test_who_does_not_hold_it_leaves_it_to_nobody(verbs, redis):
    """Semantics 3: owner-checked."""
    assert verbs.release("1:a", heir="rest:a", lease=60000) == 0
    assert not redis.exists(LOCK)
    verbs.acquire("2:b")
    assert verbs.release("1:a", heir="rest:a", lease=60000) == -1
    assert owners(redis) == ["2:b"]


def test_who_rests_lets_nobody_in_not_even_itself(verbs, redis):
    """Semantics 2."""
    verbs.acquire("1:a")
    verbs.release("1:a", heir="rest:a", lease=60000)
    for owner in ("1:a", "2:a", "queued:a", "1:b"):
        assert verbs.acquire(owner)[0] == 0
    assert verbs.renew("1:a") == 0
    assert owners(redis) == ["rest:a"]


def test_the_copies_learn_that_the_task_has_ended_though_it_rests(verbs, redis):
    """Semantics 10."""
    verbs.acquire("1:a")
    verbs.copy("a")
    assert verbs.release("1:a", early=1, heir="rest:a", lease=60000) == 2
    assert owners(redis) == ["1:a"]
    assert verbs.release("1:a", done=(DONE,), heir="rest:a", lease=60000) == 1
    assert owners(redis) == ["rest:a"]
    assert redis.hget(LOCK, "@copy") is None
    assert verbs.copy("a") == 2


def test_the_heir_that_waits_is_told_to_come_and_the_others_are_not(verbs, redis):
    """Its own retry, which was delivered before the run had ended."""
    with listening(redis, "L") as told:
        verbs.acquire("1:a")
        verbs.wait("L:3:b", since="100")
        verbs.wait("L:2:a", since="200")
        verbs.release("1:a", heir="queued:a", lease=60000)
        assert told() == [("L", f"turn {LOCK} L:2:a"), ("L", f"next {LOCK} L:3:b")]
    assert redis.zrange(WAITERS, 0, -1) == ["L:3:b"]
    assert verbs.acquire("2:a")[0] == 1


def test_a_rest_wakes_nobody_and_the_first_learns_how_long_it_is(verbs, redis):
    with listening(redis, "L") as told:
        verbs.acquire("1:a")
        verbs.wait("L:2:a", since="100")
        verbs.release("1:a", heir="rest:a", lease=60000)
        assert told() == [("L", f"next {LOCK} L:2:a")]
    assert 5000 < verbs.wait("L:2:a") <= 60000


def test_a_waiter_whose_own_the_lock_is_need_not_wait(verbs):
    verbs.acquire("queued:a")
    assert verbs.wait("L:2:a") == -1
    assert verbs.wait("L:2:b") > 0


def test_to_free_what_was_queued_leaves_a_run_alone(verbs, redis):
    """Semantics 3: the publisher's, or the parent's, late release."""
    verbs.acquire("queued:a")
    verbs.acquire("1:a")
    assert verbs.release("queued:a") == -1
    assert owners(redis) == ["1:a"]
