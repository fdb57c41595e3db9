from __future__ import annotations

import pytest

from tests.redis.conftest import DONE, LOCK, LUA, TOKEN, UNACKED, WAITERS, WOKEN
from tests.redis.places import PlaceVerbs
from tests.redis.test_script_wait import listening


def test_the_last_release_frees_the_lock_and_remembers_its_token(verbs, script_client):
    _, token = verbs.acquire("1:a")
    assert verbs.release("1:a") == 1
    assert not script_client.exists(LOCK)
    assert script_client.get(TOKEN) == str(token)
    assert 0 < script_client.pttl(TOKEN) <= 60000


def test_an_inner_release_keeps_the_lock(verbs, script_client):
    verbs.acquire("1:a")
    verbs.acquire("1:a", depth=2)
    for _ in range(2):  # Semantics 4: twice is as good as once
        assert verbs.release("1:a", depth=1) == 1
        assert script_client.hget(LOCK, "1:a") == "1"


def test_only_the_owner_releases(verbs, script_client):
    """Semantics 3: owner-checked."""
    verbs.acquire("1:a")
    before = script_client.hgetall(LOCK)
    assert verbs.release("2:b") == -1
    assert script_client.hgetall(LOCK) == before


def test_a_release_of_a_missing_lock_says_so(verbs, script_client):
    assert verbs.release("1:a") == 0
    assert script_client.keys() == []


def test_a_late_release_never_frees_a_successor(verbs, script_client):
    """Semantics 3."""
    verbs.acquire("1:a")
    script_client.delete(LOCK)
    verbs.acquire("2:b")
    assert verbs.release("1:a") == -1
    assert script_client.hget(LOCK, "2:b") == "1"


def release_briefly(script_client, owner):
    """As most requests do: without the arguments that say otherwise."""
    keys = (LOCK, TOKEN, WAITERS, WOKEN)
    return script_client.eval((LUA / "release.lua").read_text(), len(keys), *keys, owner, "")


def test_a_release_that_says_no_more_frees_the_lock(verbs, script_client):
    verbs.acquire("1:a")
    assert release_briefly(script_client, "1:a") == 1
    assert script_client.keys() == [TOKEN]


def test_one_call_passes_over_a_hundred_waiters_whose_processes_are_gone(verbs, script_client):
    verbs.acquire("1:a")
    script_client.zadd(WAITERS, {f"dead:{n}:b": n for n in range(150)})
    assert verbs.release("1:a") == 3
    assert script_client.zcard(WAITERS) == 50
    assert verbs.release("") == 0
    assert not script_client.exists(WAITERS)


def test_those_that_are_passed_over_for_the_second_waiter_count_too(verbs, script_client):
    verbs.acquire("1:a")
    script_client.zadd(WAITERS, {"M:0:b": -1, **{f"dead:{n}:b": n for n in range(150)}})
    with listening(script_client, "M"):
        assert verbs.release("1:a") == 1
    assert script_client.zcard(WAITERS) == 51


def test_a_release_in_the_turn_of_a_waiter_frees_the_lock_and_wakes_no_other(verbs, script_client):
    verbs.acquire("1:a")
    script_client.set(WOKEN, "L:2:b", px=5000)
    verbs.wait("L:3:c")
    assert verbs.release("1:a") == 1
    assert verbs.release("") == 0
    assert script_client.get(WOKEN) == "L:2:b"
    assert script_client.zrange(WAITERS, 0, -1) == ["L:3:c"]


class TestPlaces:
    @pytest.fixture
    def places(self, each_server):
        return PlaceVerbs(each_server.client(decode_responses=True))

    def test_the_largest_token_is_remembered(self, places, script_client):
        _, first, _ = places.take("1:a")
        _, second, _ = places.take("2:b")
        for owner in ("2:b", "1:a"):
            assert places.release(owner) == 1
            assert script_client.get(TOKEN) == str(second)
        assert second > first

    def test_a_number_that_lua_cannot_count_with_is_not_remembered(self, places, script_client):
        _, token, _ = places.take("1:a")
        script_client.set(TOKEN, 2**60)
        places.release("1:a")
        assert script_client.get(TOKEN) == str(token)

    def test_the_end_of_a_message_is_told_only_if_it_has_other_deliveries(self, places, script_client):
        places.take("1:a", task="t")
        assert places.finish("1:a", republished=True) == 1
        assert not script_client.exists(DONE)
        places.take("1:a", task="t")
        places.unacked("0")
        assert places.release("1:a", early=1, done=(DONE, UNACKED)) == 2
        assert places.finish("1:a", republished=True) == 1
        assert script_client.get(DONE) == "0"

    def test_a_place_rests_after_a_run_and_is_free_if_nothing_has_run(self, places):
        _, token, _ = places.take("1:a", hold=60_000, attempt="7")
        assert places.release("1:a", fence=token) == 1
        assert list(places.places()) == ["rest.0:a"]
        places.take("2:b", hold=60_000, attempt="7")
        assert places.release("2:b", fence="7") == 1
        assert list(places.places()) == ["rest.0:a"]
