"""A server that is full refuses no verb: each begins its writes with one that removes something."""

from __future__ import annotations

import pytest

from tests.redis.conftest import DONE, LOCK, UNACKED, WAITERS
from tests.redis.places import PlaceVerbs
from tests.redis.test_script_pending import QUEUED, Pending


@pytest.fixture
def verbs(each_server):
    return PlaceVerbs(each_server.client(decode_responses=True))


@pytest.fixture
def fill(script_client):
    """Makes the server full, until the test ends."""
    yield lambda: script_client.config_set("maxmemory", 1)
    script_client.config_set("maxmemory", 0)


@pytest.fixture
def one_owner(verbs, fill):
    verbs.acquire("1:a")
    fill()


@pytest.fixture
def two_places(verbs, fill):
    """Both places are taken. Returns the token of the first."""
    _, token, _ = verbs.take("1:a", task="t")
    verbs.take("2:b", task="t")
    fill()
    return token


@pytest.mark.parametrize("verb", ["acquire", "take"])
def test_a_free_lock_is_taken(verbs, fill, verb):
    fill()
    assert getattr(verbs, verb)("1:a")[0] == 1


class TestOneOwner:
    def test_re_enters_and_leaves(self, one_owner, verbs, script_client):
        assert verbs.acquire("1:a", depth=2)[0] == 1
        assert script_client.hget(LOCK, "1:a") == "2"
        assert verbs.release("1:a", depth=1) == 1
        assert script_client.hget(LOCK, "1:a") == "1"

    def test_is_waited_for(self, one_owner, verbs, script_client):
        assert verbs.acquire("2:b", waiter="L:2:b")[0] == 0
        assert script_client.zrange(WAITERS, 0, -1) == ["L:2:b"]

    def test_is_waited_for_by_a_waiter_that_asks_from_its_place(self, one_owner, verbs, script_client):
        assert verbs.wait("L:3:c") > 0
        assert script_client.zrange(WAITERS, 0, -1) == ["L:3:c"]

    def test_is_waited_for_by_a_waiter_that_passes_its_turn_on(self, one_owner, verbs, script_client):
        assert verbs.pass_on("L:4:d", "5") == 1
        assert script_client.zrange(WAITERS, 0, -1) == ["L:4:d"]

    def test_learns_that_it_was_redelivered_when_the_other_delivery_asks(
        self, one_owner, verbs, script_client
    ):
        assert verbs.acquire("2:a")[0] == 0
        assert script_client.hget(LOCK, "@redelivered") == "1"

    def test_learns_that_it_was_redelivered_and_tells_its_end(self, one_owner, verbs, script_client):
        assert verbs.redelivery("a") == 1
        assert script_client.hget(LOCK, "@redelivered") == "1"
        assert verbs.finish("1:a") == 1
        assert script_client.get(DONE) == "1"


class TestTwoPlaces:
    def test_are_re_entered_and_left(self, two_places, verbs):
        assert verbs.take("1:a", depth=2, task="t")[0] == 1
        assert verbs.places()["1:a"].depth == 2
        assert verbs.release("1:a", depth=1) == 1
        assert verbs.places()["1:a"].depth == 1

    def test_are_renewed(self, two_places, verbs):
        before = verbs.places()["1:a"].ends
        assert verbs.renew_place("1:a", two_places, ttl=60_000) == 1
        assert 40_000_000 < verbs.places()["1:a"].ends - before <= 60_000_000

    def test_are_waited_for(self, two_places, verbs, script_client):
        assert verbs.take("3:c", waiter="L/2:3:c")[0] == 0
        assert script_client.zrange(WAITERS, 0, -1) == ["L/2:3:c"]

    def test_learn_that_a_message_was_redelivered_when_the_other_delivery_asks(self, two_places, verbs):
        assert verbs.take("2:a", task="t")[0] == 0
        assert verbs.places()["1:a"].redelivered

    def test_learn_that_a_message_was_redelivered_and_tell_its_end(self, two_places, verbs, script_client):
        assert verbs.redelivery("a") == 1
        assert verbs.places()["1:a"].redelivered
        assert verbs.finish("1:a") == 1
        assert script_client.get(DONE) == "1"


def test_a_message_that_is_published_again_is_noted(verbs, fill, script_client):
    fill()
    assert verbs.unacked("1") == 1
    assert script_client.hgetall(UNACKED) == {"1": "1"}


def test_a_new_message_takes_its_place_in_line(verbs, fill, script_client):
    fill()
    assert verbs.join("L:1:a") > 0
    assert script_client.zrange(WAITERS, 0, -1) == ["L:1:a"]


def test_a_holder_learns_who_replaces_it(verbs, one_owner):
    assert verbs.replace("b", "1:a")[0] == 1
    assert verbs.renew("1:a") == "b"


def test_a_call_that_is_published_is_queued(script_client, fill):
    pending = Pending(script_client)
    pending.reserve("a")
    fill()
    assert pending.queue("a") == QUEUED
    assert pending.unqueue("a") == [1]
