"""lua/join.lua: a new message takes its place at the end of the line."""

from __future__ import annotations

import pytest
import redis

from tests.redis.conftest import LOCK, WAITERS

FIRST, SECOND = "L:1:a", "L:2:b"


def server_time(client):
    seconds, microseconds = client.time()
    return seconds * 1_000_000 + microseconds


def test_a_new_message_is_last_in_line(verbs, script_client):
    """Semantics 9."""
    before = server_time(script_client)
    first = verbs.join(FIRST)
    second = verbs.join(SECOND)
    assert before <= first <= second <= server_time(script_client)
    assert script_client.zrange(WAITERS, 0, -1, withscores=True) == [(FIRST, first), (SECOND, second)]


def test_a_message_that_asks_again_keeps_its_place(verbs, script_client):
    """Semantics 4: the first reply may have been lost."""
    since = verbs.join(FIRST)
    assert verbs.join(SECOND) >= since
    assert verbs.join(FIRST) == since
    assert script_client.zrange(WAITERS, 0, -1) == [FIRST, SECOND]


def test_the_line_lasts_as_long_as_the_waiter_that_stays_longest(verbs, script_client):
    verbs.join(FIRST, keep=90_000)
    assert 80_000 < script_client.pttl(WAITERS) <= 90_000
    verbs.join(SECOND, keep=1000)
    assert script_client.pttl(WAITERS) > 80_000
    verbs.join(SECOND, keep=200_000)
    assert script_client.pttl(WAITERS) > 190_000


@pytest.mark.parametrize("owner", ["1:a", "9:a", "other:a"])
def test_another_delivery_of_the_message_that_holds_the_lock_gives_no_place(verbs, script_client, owner):
    """Semantics 10: the pool process knows what to do with it."""
    verbs.acquire(owner)
    assert verbs.join(FIRST) == 0
    assert not script_client.exists(WAITERS)


@pytest.mark.parametrize("owner", ["1:b", "1.2:a", "L:1"])
def test_another_message_gets_a_place(verbs, owner):
    """A retry, whose delivery has a number behind a dot, is another message than the first."""
    verbs.acquire(owner)
    assert verbs.join(FIRST) > 0


def test_a_retry_joins_unless_it_holds_the_lock(verbs):
    verbs.acquire("1.2:a")
    assert verbs.join("L:7.2:a") == 0
    assert verbs.join("L:7.3:a") > 0


@pytest.mark.parametrize("waiter", ["", "a", ":1:a"])
def test_a_waiter_without_a_listener_is_refused(verbs, script_client, waiter):
    with pytest.raises(redis.ResponseError, match="listener:delivery:task-id"):
        verbs.join(waiter)
    assert not script_client.exists(LOCK, WAITERS)
