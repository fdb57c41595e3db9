"""Semantics 12: places among the waiters, and whose turn it is."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from tests.redis.conftest import CHANNEL, LOCK, TOKEN, WAITERS, WOKEN


@contextmanager
def listening(script_client, *listeners):
    """What these listeners are told, without the time, as a function."""
    with script_client.pubsub() as pubsub:
        pubsub.subscribe(*(CHANNEL + listener for listener in listeners))
        for _ in listeners:
            assert pubsub.get_message(timeout=5)["type"] == "subscribe"

        def told():
            heard = []
            while message := pubsub.get_message(timeout=0.2 if heard else 5):
                what, _, address = message["data"].split(" ", 2)
                heard.append((message["channel"].removeprefix(CHANNEL), f"{what} {address}"))
            return heard

        yield told


def test_a_held_lock_gives_a_place_and_the_time_of_its_lease(verbs, script_client):
    verbs.acquire("1:a", ttl=5000)
    assert 0 < verbs.wait("L:2:b") <= 5000
    assert script_client.zrange(WAITERS, 0, -1) == ["L:2:b"]


def test_a_new_message_gets_its_place_at_the_end_and_learns_since_when(verbs, script_client):
    verbs.acquire("1:a")
    verbs.wait("L:2:b")
    since = verbs.join("L:3:c", keep=5000)
    assert script_client.zrange(WAITERS, 0, -1) == ["L:2:b", "L:3:c"]
    assert verbs.join("L:3:c") == since == script_client.zscore(WAITERS, "L:3:c")
    assert verbs.join("L:4:d") > since


@pytest.mark.parametrize("holder", ["1:a", "1.1.0:a", "queued:a", "rest:a"])
def test_a_new_message_gets_no_place_while_another_delivery_of_it_has_the_lock(verbs, script_client, holder):
    script_client.hset(LOCK, mapping={holder: 1, "@token": 1})
    own = holder.replace("1", "2", 1) if holder[0] == "1" else "2:a"
    assert verbs.join(f"L:{own}") == 0
    assert not script_client.exists(WAITERS)
    assert verbs.join("L:3:b") > 0


def test_a_place_is_kept_for_a_while_only(verbs, script_client):
    verbs.acquire("1:a")
    verbs.wait("L:2:b", keep=9000)
    assert 0 < script_client.pttl(WAITERS) <= 9000
    verbs.wait("L:3:c", keep=4000)
    assert script_client.pttl(WAITERS) > 4000


def test_a_waiter_that_does_not_say_since_when_waits_from_now_on(verbs, script_client):
    verbs.acquire("1:a")
    verbs.wait("L:2:b")
    assert abs(script_client.zscore(WAITERS, "L:2:b") / 1_000_000 - script_client.time()[0]) < 60


def test_to_ask_again_keeps_the_place(verbs, script_client):
    verbs.acquire("1:a")
    verbs.wait("L:2:b", since="100")
    verbs.wait("L:3:c", since="200")
    verbs.wait("L:2:b", since="300")
    assert script_client.zrange(WAITERS, 0, -1, withscores=True) == [("L:2:b", 100), ("L:3:c", 200)]


def test_the_first_waiter_stays_first_whenever_it_asks(verbs, script_client):
    verbs.acquire("1:a")
    verbs.wait("L:3:c", since="200")
    verbs.wait("L:2:b", since="100")
    verbs.wait("L:4:d")
    assert script_client.zrange(WAITERS, 0, -1) == ["L:2:b", "L:3:c", "L:4:d"]


def test_a_waiter_that_finds_the_lock_free_wakes_the_first(verbs, script_client):
    """The lease of a dead holder has ended."""
    with listening(script_client, "L", "M") as told:
        verbs.acquire("1:a", ttl=20)
        verbs.wait("L:2:b", since="100")
        time.sleep(0.04)
        assert verbs.wait("M:3:c", since="200") == 0
        assert verbs.release("") == 0
        assert told() == [("L", f"turn {LOCK} L:2:b"), ("M", f"next {LOCK} M:3:c")]
    assert script_client.zrange(WAITERS, 0, -1) == ["M:3:c"]


def test_while_a_woken_waiter_is_on_its_way_no_other_is_woken(verbs, script_client):
    script_client.set(WOKEN, "L:2:b", px=500)
    assert 0 < verbs.wait("L:3:c") <= 500
    assert verbs.release("") == 0
    assert script_client.get(WOKEN) == "L:2:b"


def test_a_woken_waiter_that_does_not_come_in_time_is_not_waited_for(verbs, script_client):
    script_client.set(WOKEN, "L:2:b", px=20)
    time.sleep(0.04)
    assert verbs.wait("L:3:c") == 0


def test_a_release_wakes_the_first_and_tells_the_second(verbs, script_client):
    with listening(script_client, "L", "M") as told:
        verbs.acquire("1:a")
        verbs.wait("M:3:c", since="200")
        verbs.wait("L:2:b", since="100")
        verbs.wait("M:4:d", since="300")
        assert verbs.release("1:a") == 1
        assert told() == [("L", f"turn {LOCK} L:2:b"), ("M", f"next {LOCK} M:3:c")]
    assert script_client.zrange(WAITERS, 0, -1) == ["M:3:c", "M:4:d"]
    assert 0 < script_client.pttl(WOKEN) <= 1000


def test_a_release_removes_waiters_whose_process_is_gone(verbs, script_client):
    with listening(script_client, "M") as told:
        verbs.acquire("1:a")
        verbs.wait("dead:2:b", since="100")
        verbs.wait("dead:3:b", since="101")
        verbs.wait("M:3:c", since="200")
        verbs.wait("dead:4:b", since="201")
        verbs.wait("M:5:d", since="300")
        verbs.release("1:a")
        assert told() == [("M", f"turn {LOCK} M:3:c"), ("M", f"next {LOCK} M:5:d")]
    assert script_client.zrange(WAITERS, 0, -1) == ["M:5:d"]


def test_a_release_without_waiters_leaves_nothing(verbs, script_client):
    verbs.acquire("1:a")
    verbs.wait("dead:2:b")
    verbs.release("1:a")
    assert script_client.keys() == [TOKEN]


@pytest.mark.parametrize("how", ["inner", "not the owner", "early, with a copy"])
def test_a_release_that_does_not_free_the_lock_wakes_no_waiter(verbs, script_client, how):
    verbs.acquire("1:a")
    verbs.acquire("1:a", depth=2)
    verbs.wait("L:2:b")
    if how == "inner":
        verbs.release("1:a", depth=1)
    elif how == "not the owner":
        verbs.release("2:b")
    else:
        verbs.redelivery("a")
        verbs.release("1:a", early=1)
    assert script_client.zrange(WAITERS, 0, -1) == ["L:2:b"]
    assert not script_client.exists(WOKEN)


def test_a_release_of_a_missing_lock_wakes_the_first_waiter(verbs, script_client):
    """So a waiter that cannot run passes it on."""
    with listening(script_client, "L") as told:
        verbs.acquire("1:a", ttl=20)
        verbs.wait("L:2:b")
        time.sleep(0.04)
        assert verbs.release("") == 0
        assert told() == [("L", f"turn {LOCK} L:2:b")]
