"""Semantics 12: a woken waiter that cannot run now keeps its place, and passes its turn on."""

from __future__ import annotations

import time

import pytest

from tests.redis.conftest import LOCK, WAITERS, WOKEN
from tests.redis.places import PlaceVerbs
from tests.redis.test_script_wait import listening

WOKE_ANOTHER, NO_OTHER = 1, 0


@pytest.fixture
def verbs(each_server):
    return PlaceVerbs(each_server.client(decode_responses=True))


@pytest.fixture
def line(script_client):
    """Puts these waiters into the line behind `L:2:b`, whose place is 100."""

    def put(*waiters):
        script_client.zadd(WAITERS, {waiter: 200 + place for place, waiter in enumerate(waiters)})
        script_client.pexpire(WAITERS, 50_000)

    return put


def waiters(script_client):
    return script_client.zrange(WAITERS, 0, -1)


class TestItsPlace:
    def test_is_where_it_was_before(self, verbs, script_client):
        verbs.pass_on("L:2:b", 100)
        verbs.pass_on("L:2:b", 300)
        assert script_client.zrange(WAITERS, 0, -1, withscores=True) == [("L:2:b", 100)]

    def test_is_kept_for_a_while_only(self, verbs, script_client):
        verbs.pass_on("L:2:b", 100, keep=9000)
        assert 4000 < script_client.pttl(WAITERS) <= 9000
        verbs.pass_on("L:2:b", 100, keep=50)
        assert script_client.pttl(WAITERS) > 50
        verbs.pass_on("L:2:b", 100, keep=90_000)
        assert script_client.pttl(WAITERS) > 9000


class TestTheWholeKey:
    def test_goes_to_a_waiter_of_another_process_for_a_second(self, verbs, line, script_client):
        script_client.set(WOKEN, "L:2:b", px=500)
        line("L:3:c", "M:4:d", "M:5:e")
        with listening(script_client, "L", "M") as told:
            assert verbs.pass_on("L:2:b", 100) == WOKE_ANOTHER
            assert told() == [("M", f"turn {LOCK} M:4:d")]
        assert waiters(script_client) == ["L:2:b", "L:3:c", "M:5:e"]
        assert script_client.get(WOKEN) == "M:4:d"
        assert 0 < script_client.pttl(WOKEN) <= 1000

    def test_goes_to_no_waiter_if_no_other_process_waits(self, verbs, line, script_client):
        script_client.set(WOKEN, "L:2:b", px=500)
        line("L:3:c")
        with listening(script_client, "L"):
            assert verbs.pass_on("L:2:b", 100) == NO_OTHER
        assert waiters(script_client) == ["L:2:b", "L:3:c"]
        assert not script_client.exists(WOKEN)

    def test_goes_to_the_next_one_that_is_alive(self, verbs, line, script_client):
        line("dead:3:c", "M:4:d")
        with listening(script_client, "M") as told:
            assert verbs.pass_on("L:2:b", 100) == WOKE_ANOTHER
            assert told() == [("M", f"turn {LOCK} M:4:d")]
        assert waiters(script_client) == ["L:2:b"]

    def test_one_call_tries_twenty_dead_processes(self, verbs, line, script_client):
        line(*(f"dead{n}:3:c" for n in range(30)))
        assert verbs.pass_on("L:2:b", 100) == NO_OTHER
        assert script_client.zcard(WAITERS) == 1 + 30 - 20

    def test_does_not_go_back_to_a_waiter_before_it(self, verbs, line, script_client):
        line("M:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L:2:b", 300) == NO_OTHER
        assert waiters(script_client) == ["M:4:d", "L:2:b"]

    def test_stays_with_another_waiter_that_has_the_turn_now(self, verbs, line, script_client):
        script_client.set(WOKEN, "N:9:z", px=500)
        line("M:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L:2:b", 100) == WOKE_ANOTHER
        assert script_client.get(WOKEN) == "N:9:z"
        assert waiters(script_client) == ["L:2:b", "M:4:d"]

    def test_stays_with_its_owner_if_it_was_taken_meanwhile(self, verbs, line, script_client):
        verbs.acquire("1:a")
        line("M:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L:2:b", 100) == WOKE_ANOTHER
        assert waiters(script_client) == ["L:2:b", "M:4:d"]
        assert not script_client.exists(WOKEN)

    def test_goes_to_a_waiter_with_a_limit_that_no_lock_has(self, verbs, line, script_client):
        line("M/0:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L:2:b", 100) == WOKE_ANOTHER
        assert script_client.get(WOKEN) == "M/0:4:d"


class TestOneOfSeveralPlaces:
    def test_is_kept_for_a_waiter_of_another_process(self, verbs, line, script_client):
        verbs.take("1:a", limit=3, ttl=60_000)
        script_client.hset(LOCK, "turn:L/3:2:b", f"{10**16} 0 3 0 0 0 0 0  \n")
        line("M:4:d", "M/2:5:e", "M/3:6:f")
        with listening(script_client, "M") as told:
            assert verbs.pass_on("L/3:2:b", 100) == WOKE_ANOTHER
            assert told() == [("M", f"turn {LOCK} M/2:5:e")]
        assert waiters(script_client) == ["L/3:2:b", "M:4:d", "M/3:6:f"]
        places = verbs.places()
        assert places.keys() == {"1:a", "turn:M/2:5:e"}
        seconds, micros = script_client.time()
        now = seconds * 1_000_000 + micros
        turn = places["turn:M/2:5:e"]
        assert turn.limit == 2
        assert now - 60_000_000 < turn.ends <= now + 1_000_000

    def test_keeps_the_key_alive_for_the_turn_and_no_longer(self, verbs, line, script_client):
        line("M/2:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L/2:2:b", 100) == WOKE_ANOTHER
        assert 0 < script_client.pttl(LOCK) <= 1000

    def test_does_not_shorten_the_lives_of_the_others(self, verbs, line, script_client):
        verbs.take("1:a", limit=2, ttl=60_000)
        line("M/2:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L/2:2:b", 100) == WOKE_ANOTHER
        assert script_client.pttl(LOCK) > 30_000

    def test_is_not_there_while_the_owners_inside_use_up_the_limit(self, verbs, line, script_client):
        verbs.take("1:a", limit=3)
        verbs.take("1:b", limit=2)
        line("M/3:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L/3:2:b", 100) == WOKE_ANOTHER
        assert waiters(script_client) == ["L/3:2:b", "M/3:4:d"]

    def test_is_there_again_when_a_lease_has_ended(self, verbs, line, script_client):
        verbs.take("1:a", limit=2, ttl=60_000)
        verbs.take("1:b", limit=2, ttl=20)
        time.sleep(0.05)
        line("M/2:4:d")
        with listening(script_client, "M"):
            assert verbs.pass_on("L/2:2:b", 100) == WOKE_ANOTHER
        assert verbs.places().keys() == {"1:a", "turn:M/2:4:d"}
