"""What other programs wrote into a lock's keys, and arguments that no lock has, break nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from celery_rlock import ConfigurationError, LockUnavailable
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Busy, Place, Release, ReleaseReply, Taken
from tests.redis.conftest import LOCK, TOKEN, WAITERS, WOKEN

FOREIGN = {"": "1", "@token": "7", "name": "ann"}


@pytest.mark.parametrize("owner", ["", ":", ":a", "a"])
def test_only_an_owner_with_a_name_takes_a_lock(verbs, script_client, owner):
    with pytest.raises(ResponseError, match="the owner must be delivery:task-id"):
        verbs.acquire(owner)
    assert script_client.keys() == []


@pytest.mark.parametrize("waiter", ["", "L", "L:1", "::a", ":1:a"])
def test_only_a_waiter_with_a_name_takes_a_place(verbs, script_client, waiter):
    for take_place in (lambda: verbs.wait(waiter), lambda: verbs.pass_on(waiter, "1")):
        with pytest.raises(ResponseError, match="the waiter must be listener:delivery:task-id"):
            take_place()
    assert script_client.keys() == []


def test_without_an_owner_nothing_is_released_or_renewed(verbs, script_client):
    """A foreign hash may have a field without a name."""
    script_client.hset(LOCK, mapping=FOREIGN)
    script_client.expire(LOCK, 100)
    assert (verbs.release(""), verbs.renew("", token="7")) == (-1, 0)
    assert (script_client.hgetall(LOCK), script_client.ttl(LOCK)) == (FOREIGN, 100)


JUNK = ["", "x", "-1", "nan", "inf", "-inf", "1e400", "9" * 5000, "0x10", "²", "\udcff", "1.5"]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: ascii(junk)[:12])
class TestJunk:
    """In the place of each value of a lock, one after the other."""

    def test_as_the_last_token_does_not_keep_the_lock_from_being_taken(self, lock_server, redis, junk):
        redis.set(TOKEN, junk.encode("utf-8", "surrogateescape"))
        taken = lock_server.acquire(lock_server.redis_keys("k"), Owner("w", "1", "a"), 1, 5, "t")
        assert isinstance(taken, Taken)
        assert taken.token > 1_600_000_000_000_000

    def test_as_the_holders_token_is_no_token_of_ours(self, lock_server, redis, junk):
        keys, owner = lock_server.redis_keys("k"), Owner("w", "1", "a")
        lock_server.acquire(keys, owner, 1, 5, "t", attempt="x")
        redis.hset(LOCK, "@token", junk.encode("utf-8", "surrogateescape"))
        again = lock_server.acquire(keys, owner, 2, 5, "t", attempt="x")
        assert isinstance(again, Taken)
        assert lock_server.token(keys, owner) == again.token
        taken = lock_server.acquire(keys, owner, 1, 5, "t", attempt="another")
        assert taken.token > 1_600_000_000_000_000

    def test_as_waiters_and_as_the_woken_one_ends_nothing(self, lock_server, redis, junk):
        keys, owner = lock_server.redis_keys("k"), Owner("w", "1", "a")
        member = junk.encode("utf-8", "surrogateescape")
        redis.zadd(WAITERS, {member: float("-inf"), b"y" + member: float("inf")})
        redis.set(WOKEN, member or b"-", px=5000)
        assert isinstance(lock_server.acquire(keys, owner, 1, 5, "t"), Busy)
        redis.delete(WOKEN)
        lock_server.wake(keys)
        assert isinstance(lock_server.acquire(keys, owner, 1, 5, "t"), Taken)
        assert isinstance(lock_server.wait([Place(keys, "L:2:b", 0, 5)])[0], float)
        redis.zadd(WAITERS, {member: 1})
        assert lock_server.release(keys, owner, Release()) == ReleaseReply.RELEASED

    def test_as_the_holder_is_busy_like_any_other(self, lock_server, redis, junk):
        redis.hset(LOCK, junk.encode("utf-8", "surrogateescape") or b"-", "1")
        busy = lock_server.acquire(lock_server.redis_keys("k"), Owner("w", "1", "a"), 1, 5, "t")
        assert isinstance(busy, Busy)
        assert str(busy.owner)


@pytest.mark.parametrize("name", [LOCK, TOKEN, WAITERS, WOKEN])
def test_another_type_in_a_locks_place_gives_one_of_our_errors_and_no_other(lock_server, redis, name):
    keys, owner = lock_server.redis_keys("k"), Owner("w", "1", "a")
    lock_server.acquire(keys, owner, 1, 5, "t")
    redis.delete(name)
    redis.rpush(name, "a")
    for verb in (
        lambda: lock_server.acquire(keys, Owner("w", "2", "b"), 1, 5, "t"),
        lambda: lock_server.wake(keys),
        lambda: lock_server.pass_on(Place(keys, "L:2:b", 1, 5)),
    ):
        with suppress(ConfigurationError, LockUnavailable):
            verb()


def test_a_release_never_says_that_the_configuration_is_wrong(lock_server, redis):
    """Semantics 5: a failing release never turns a finished task into a failure."""
    keys, owner = lock_server.redis_keys("k"), Owner("w", "1", "a")
    redis.rpush(LOCK, "a")
    with pytest.raises(LockUnavailable, match="WRONGTYPE"):
        lock_server.release(keys, owner, Release())


DEAD = 40_000


def test_any_number_of_forged_waiters_costs_a_call_only_so_much(lock_server, redis):
    """No process hears them. Each call removes some thousands, and after a few calls the lock is free."""
    keys = lock_server.redis_keys("k")
    for start in range(0, DEAD, 10_000):
        redis.zadd(WAITERS, {f"dead{n}:0:task": n for n in range(start, start + 10_000)})
    redis.pexpire(WAITERS, 600_000)
    for _ in range(DEAD // 10_000):
        redis.config_resetstat()
        if isinstance(lock_server.acquire(keys, Owner("w", "1", "a"), 1, 5, "t"), Taken):
            break
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] < 200
    assert lock_server.token(keys, Owner("w", "1", "a"))
