from __future__ import annotations

import time
from itertools import pairwise

import pytest
from redis.exceptions import ResponseError

from tests.lua.conftest import LOCK, LUA, TOKEN


def test_a_free_lock_is_taken_and_says_by_whom(verbs, redis):
    status, token = verbs.acquire("1:a", task="proj.sync")
    assert status == 1
    fields = redis.hgetall(LOCK)
    assert fields.pop("@since")
    assert fields == {"1:a": "1", "@token": token, "@task": "proj.sync", "@worker": "w"}
    assert 0 < redis.pttl(LOCK) <= 5000


def test_the_token_is_the_servers_clock_in_microseconds(verbs, redis):
    seconds, micros = redis.time()
    _, token = verbs.acquire("1:a")
    assert 0 <= int(token) - (seconds * 1_000_000 + micros) < 60_000_000


def test_a_held_lock_is_busy_and_names_its_holder(verbs, redis):
    verbs.acquire("1:a")
    before = redis.hgetall(LOCK)
    status, left, *holder, at = verbs.acquire("2:b")
    assert (status, holder) == (0, ["1:a", "w", "t"])
    assert 0 < left <= 5000
    assert 0 <= redis.time()[0] - int(at) // 1_000_000 <= 5
    assert redis.hgetall(LOCK) == before


def test_the_owner_enters_again_under_the_same_token(verbs, redis):
    """Semantics 2 and 14: re-entry keeps the token."""
    first = verbs.acquire("1:a")
    assert verbs.acquire("1:a", depth=2) == first
    assert redis.hget(LOCK, "1:a") == "2"


def test_a_repeated_acquire_changes_nothing(verbs, redis):
    """Semantics 4: the depth is absolute, so a script that runs twice leaves it where it was."""
    for depth in (1, 2):
        answer = verbs.acquire("1:a", depth=depth)
        assert verbs.acquire("1:a", depth=depth) == answer
        assert redis.hget(LOCK, "1:a") == str(depth)


def test_entering_again_what_is_gone_takes_nothing(verbs, redis):
    assert verbs.acquire("1:a", depth=2) == [-1]
    assert not redis.exists(LOCK)


def test_entering_again_never_shortens_the_lease(verbs, redis):
    verbs.acquire("1:a", ttl=60000)
    verbs.acquire("1:a", depth=2, ttl=1000)
    assert redis.pttl(LOCK) > 50000
    verbs.acquire("1:a", depth=3, ttl=90000)
    assert redis.pttl(LOCK) > 80000


def test_a_lease_ends_by_itself_to_the_millisecond_not_the_second(verbs, redis):
    """Semantics 7: free after the lease."""
    verbs.acquire("1:a", ttl=30)
    time.sleep(0.05)
    assert verbs.acquire("2:b")[0] == 1


def test_the_token_grows_with_every_ownership(verbs):
    """Semantics 14: across releases and expiry."""
    tokens = []
    for turn in range(50):
        tokens.append(int(verbs.acquire(f"{turn}:a", ttl=1 if turn % 2 else 5000)[1]))
        if turn % 2:
            time.sleep(0.003)
        else:
            verbs.release(f"{turn}:a")
    assert all(earlier < later for earlier, later in pairwise(tokens))


def test_the_token_grows_across_a_flush(verbs, redis):
    """Semantics 14: Redis forgets everything, the clock does not."""
    first = int(verbs.acquire("1:a")[1])
    redis.flushall()
    assert int(verbs.acquire("2:b")[1]) > first


def test_the_token_grows_when_the_servers_clock_goes_back(verbs, redis):
    """Semantics 14: a remembered token ahead of the clock is the floor, also when the lease then ends."""
    seconds, _ = redis.time()
    ahead = (seconds + 30) * 1_000_000
    redis.set(TOKEN, ahead, px=60000)
    assert int(verbs.acquire("1:a", ttl=20)[1]) == ahead + 1
    time.sleep(0.04)
    assert int(verbs.acquire("2:b")[1]) == ahead + 2
    assert redis.pttl(TOKEN) > 25000


def test_an_uncontended_lock_is_one_key(verbs, redis):
    verbs.acquire("1:a")
    verbs.release("1:a")
    verbs.acquire("1:b")
    assert redis.keys() == [LOCK]


def test_a_held_lock_takes_at_most_300_bytes(verbs, redis):
    """The contract's section 8, for a 40-character key and a Kubernetes pod's names."""
    key = "rlock:{" + "k" * 40 + "}"
    owner = ("0badcafe:8f6c1f0a-6f0e-4e0b-9d7b-2f9a6a1b3c4d", "celery@worker-7f9c8d6b5d-abcde")
    source = (LUA / "acquire.lua").read_text()
    redis.eval(source, 2, key, key + ":token", *owner, 1, 30000, "proj.tasks.synchronize_account")
    assert sum(redis.memory_usage(name) for name in redis.scan_iter()) <= 300


def test_something_else_at_the_key_is_an_error(verbs, redis):
    """Semantics 16: a foreign type at the key."""
    redis.set(LOCK, "text")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        verbs.acquire("1:a")
    assert redis.get(LOCK) == "text"
