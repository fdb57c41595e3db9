"""Semantics 12: places among the waiters, and whose turn it is."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from tests.lua.conftest import CHANNEL, LOCK, TOKEN, WAITERS, WOKEN


@contextmanager
def listening(redis, *listeners):
    """What these listeners are told, without the time, as a function."""
    with redis.pubsub() as pubsub:
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


def test_a_held_lock_gives_a_place_and_the_time_of_its_lease(verbs, redis):
    verbs.acquire("1:a", ttl=5000)
    assert 0 < verbs.wait("L:2:b") <= 5000
    assert redis.zrange(WAITERS, 0, -1) == ["L:2:b"]


def test_a_place_is_kept_for_a_while_only(verbs, redis):
    verbs.acquire("1:a")
    verbs.wait("L:2:b", keep=9000)
    assert 0 < redis.pttl(WAITERS) <= 9000
    verbs.wait("L:3:c", keep=4000)
    assert redis.pttl(WAITERS) > 4000


def test_to_ask_again_keeps_the_place(verbs, redis):
    verbs.acquire("1:a")
    verbs.wait("L:2:b", since="100")
    verbs.wait("L:3:c", since="200")
    verbs.wait("L:2:b", since="300")
    assert redis.zrange(WAITERS, 0, -1, withscores=True) == [("L:2:b", 100), ("L:3:c", 200)]


def test_who_came_first_is_first_whenever_he_asks(verbs, redis):
    verbs.acquire("1:a")
    verbs.wait("L:3:c", since="200")
    verbs.wait("L:2:b", since="100")
    verbs.wait("L:4:d")
    assert redis.zrange(WAITERS, 0, -1) == ["L:2:b", "L:3:c", "L:4:d"]


def test_who_finds_the_lock_free_is_to_wake_the_first(verbs, redis):
    """The lease of a dead holder has ended."""
    with listening(redis, "L", "M") as told:
        verbs.acquire("1:a", ttl=20)
        verbs.wait("L:2:b", since="100")
        time.sleep(0.04)
        assert verbs.wait("M:3:c", since="200") == 0
        assert verbs.release("") == 0
        assert told() == [("L", f"turn {LOCK} L:2:b"), ("M", f"next {LOCK} M:3:c")]
    assert redis.zrange(WAITERS, 0, -1) == ["M:3:c"]


def test_while_somebody_is_on_the_way_nobody_else_is_to_wake(verbs):
    assert verbs.wait("L:2:b", trust=500) == 0
    assert 0 < verbs.wait("L:3:c") <= 500


def test_who_does_not_come_in_time_is_not_waited_for(verbs):
    assert verbs.wait("L:2:b", trust=20) == 0
    time.sleep(0.04)
    assert verbs.wait("L:3:c") == 0


def test_a_release_wakes_the_first_and_tells_the_second(verbs, redis):
    with listening(redis, "L", "M") as told:
        verbs.acquire("1:a")
        verbs.wait("M:3:c", since="200")
        verbs.wait("L:2:b", since="100")
        verbs.wait("M:4:d", since="300")
        assert verbs.release("1:a") == 1
        assert told() == [("L", f"turn {LOCK} L:2:b"), ("M", f"next {LOCK} M:3:c")]
    assert redis.zrange(WAITERS, 0, -1) == ["M:3:c", "M:4:d"]
    assert 0 < redis.pttl(WOKEN) <= 1000


def test_a_release_passes_over_who_does_not_listen(verbs, redis):
    with listening(redis, "M") as told:
        verbs.acquire("1:a")
        verbs.wait("dead:2:b", since="100")
        verbs.wait("dead:3:b", since="101")
        verbs.wait("M:3:c", since="200")
        verbs.wait("dead:4:b", since="201")
        verbs.wait("M:5:d", since="300")
        verbs.release("1:a")
        assert told() == [("M", f"turn {LOCK} M:3:c"), ("M", f"next {LOCK} M:5:d")]
    assert redis.zrange(WAITERS, 0, -1) == ["M:5:d"]


def test_a_release_for_nobody_leaves_nothing(verbs, redis):
    verbs.acquire("1:a")
    verbs.wait("dead:2:b")
    verbs.release("1:a")
    assert redis.keys() == [TOKEN]


@pytest.mark.parametrize("how", ["inner", "not the owner", "early, with a copy"])
def test_a_release_that_does_not_free_the_lock_wakes_nobody(verbs, redis, how):
    verbs.acquire("1:a")
    verbs.acquire("1:a", depth=2)
    verbs.wait("L:2:b")
    if how == "inner":
        verbs.release("1:a", depth=1)
    elif how == "not the owner":
        verbs.release("2:b")
    else:
        verbs.copy("a")
        verbs.release("1:a", early=1)
    assert redis.zrange(WAITERS, 0, -1) == ["L:2:b"]
    assert not redis.exists(WOKEN)


def test_a_release_of_what_is_gone_wakes_too(verbs, redis):
    """So whoever cannot come passes it on."""
    with listening(redis, "L") as told:
        verbs.acquire("1:a", ttl=20)
        verbs.wait("L:2:b")
        time.sleep(0.04)
        assert verbs.release("") == 0
        assert told() == [("L", f"turn {LOCK} L:2:b")]
