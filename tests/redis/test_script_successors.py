"""What a task has before its run and after: `queued:` and `rest:` in the place of a delivery."""

from __future__ import annotations

import time

import pytest

from tests.redis.conftest import DONE, LOCK, TOKEN, WAITERS
from tests.redis.test_script_wait import listening


def owners(script_client):
    return [field for field in script_client.hkeys(LOCK) if not field.startswith("@")]


def test_a_run_takes_over_what_was_queued_for_it(verbs, script_client):
    """In one step: a new token, the run's worker and its lease."""
    _, queued = verbs.acquire("queued:a", ttl=60000, worker="publisher")
    status, token = verbs.acquire("1:a", ttl=5000, worker="w")
    assert (status, int(token) > int(queued)) == (1, True)
    assert owners(script_client) == ["1:a"]
    assert script_client.hget(LOCK, "@worker") == "w"
    assert script_client.pttl(LOCK) <= 5000


def test_to_take_over_twice_is_as_good_as_once(verbs, script_client):
    """Semantics 4: the reply was lost."""
    verbs.acquire("queued:a")
    assert verbs.acquire("1:a") == verbs.acquire("1:a")
    assert owners(script_client) == ["1:a"]


def test_only_its_own_task_takes_over_a_queued_lock(verbs, script_client):
    verbs.acquire("queued:a", task="proj.once")
    for owner in ("1:b", "queued:b", "rest:a:b"):
        assert verbs.acquire(owner)[:5][0] == 0
    assert verbs.acquire("1:b")[2:5] == ["queued:a", "w", "proj.once"]
    assert owners(script_client) == ["queued:a"]


def test_a_re_entry_does_not_take_over_a_queued_lock(verbs, script_client):
    """Depth 2 is for a run that has lost its lock meanwhile: its retry has it, not the run."""
    verbs.acquire("queued:a")
    assert verbs.acquire("1:a", depth=2)[0] == 0
    assert owners(script_client) == ["queued:a"]


def test_a_second_delivery_does_not_take_over_from_the_first(verbs, script_client):
    """Semantics 2 and 10."""
    verbs.acquire("queued:a")
    verbs.acquire("1:a")
    assert verbs.acquire("2:a")[0] == 0
    assert owners(script_client) == ["1:a"]
    assert script_client.hget(LOCK, "@redelivered") == "1"


def test_an_older_token_goes_before_the_queued_one_and_that_before_the_runs(verbs, script_client):
    """Semantics 14: also when the server's clock went back."""
    ahead = (int(time.time()) + 3600) * 1_000_000
    script_client.set(TOKEN, ahead)
    queued = int(verbs.acquire("queued:a")[1])
    run = int(verbs.acquire("1:a")[1])
    assert ahead < queued < run


@pytest.mark.parametrize("successor", ["queued:a", "rest:a"])
def test_the_successor_has_the_key_after_its_owner(verbs, script_client, successor):
    _, token = verbs.acquire("1:a", ttl=5000)
    assert verbs.release("1:a", successor=successor, lease=60000) == 1
    assert owners(script_client) == [successor]
    assert 5000 < script_client.pttl(LOCK) <= 60000
    assert script_client.hget(LOCK, "@token") == str(token)


@pytest.mark.parametrize("successor", ["queued:a", "rest:a"])
def test_a_repeated_release_to_a_successor_changes_nothing(verbs, script_client, successor):
    """Semantics 4: the reply was lost."""
    verbs.acquire("1:a")
    verbs.release("1:a", successor=successor, lease=60000)
    before = script_client.hgetall(LOCK)
    assert verbs.release("1:a", successor=successor, lease=90000) == -1
    assert script_client.hgetall(LOCK) == before
    assert script_client.pttl(LOCK) <= 60000


def test_a_successors_lease_may_be_shorter_than_the_owners(verbs, script_client):
    verbs.acquire("1:a", ttl=60000)
    verbs.release("1:a", successor="rest:a", lease=300)
    assert script_client.pttl(LOCK) <= 300


def test_an_inner_release_has_no_successor(verbs, script_client):
    verbs.acquire("1:a")
    verbs.acquire("1:a", depth=2)
    assert verbs.release("1:a", depth=1, successor="rest:a", lease=60000) == 1
    assert owners(script_client) == ["1:a"]


def test_only_the_holder_names_a_successor(verbs, script_client):
    """Semantics 3: owner-checked."""
    assert verbs.release("1:a", successor="rest:a", lease=60000) == 0
    assert not script_client.exists(LOCK)
    verbs.acquire("2:b")
    assert verbs.release("1:a", successor="rest:a", lease=60000) == -1
    assert owners(script_client) == ["2:b"]


def test_a_resting_key_lets_no_owner_in_not_even_its_own(verbs, script_client):
    """Semantics 2."""
    verbs.acquire("1:a")
    verbs.release("1:a", successor="rest:a", lease=60000)
    for owner in ("1:a", "2:a", "queued:a", "1:b"):
        assert verbs.acquire(owner)[0] == 0
    assert verbs.renew("1:a") == 0
    assert owners(script_client) == ["rest:a"]


def test_a_redelivery_learns_that_a_resting_task_has_ended(verbs, script_client):
    """Semantics 10."""
    verbs.acquire("1:a")
    verbs.redelivery("a")
    assert verbs.release("1:a", early=1, successor="rest:a", lease=60000) == 2
    assert owners(script_client) == ["1:a"]
    assert verbs.release("1:a", done=(DONE,), successor="rest:a", lease=60000) == 1
    assert owners(script_client) == ["rest:a"]
    assert script_client.hget(LOCK, "@redelivered") is None
    assert verbs.redelivery("a") == 2


def test_a_waiting_successor_is_woken_and_other_waiters_are_not(verbs, script_client):
    """Its own retry, which was delivered before the run had ended."""
    with listening(script_client, "L") as told:
        verbs.acquire("1:a")
        verbs.wait("L:3:b", since="100")
        verbs.wait("L:2:a", since="200")
        verbs.release("1:a", successor="queued:a", lease=60000)
        assert told() == [("L", f"turn {LOCK} L:2:a"), ("L", f"next {LOCK} L:3:b")]
    assert script_client.zrange(WAITERS, 0, -1) == ["L:3:b"]
    assert verbs.acquire("2:a")[0] == 1


def test_a_resting_key_wakes_no_waiter_and_tells_the_first_how_long(verbs, script_client):
    with listening(script_client, "L") as told:
        verbs.acquire("1:a")
        verbs.wait("L:2:a", since="100")
        verbs.release("1:a", successor="rest:a", lease=60000)
        assert told() == [("L", f"next {LOCK} L:2:a")]
    assert 5000 < verbs.wait("L:2:a") <= 60000


def test_a_waiter_whose_own_the_lock_is_need_not_wait(verbs):
    verbs.acquire("queued:a")
    assert verbs.wait("L:2:a") == -1
    assert verbs.wait("L:2:b") > 0


def test_freeing_a_queued_lock_leaves_a_run_alone(verbs, script_client):
    """Semantics 3: the publisher's, or the parent's, late release."""
    verbs.acquire("queued:a")
    verbs.acquire("1:a")
    assert verbs.release("queued:a") == -1
    assert owners(script_client) == ["1:a"]
