from __future__ import annotations

import time
from itertools import pairwise

import pytest
from redis.exceptions import ResponseError

from tests.redis.conftest import LOCK, LUA, TOKEN


def test_a_free_lock_is_taken_and_says_by_whom(verbs, script_client):
    status, token = verbs.acquire("1:a", task="proj.sync")
    assert status == 1
    fields = script_client.hgetall(LOCK)
    assert fields.pop("@since")
    expected = {"1:a": "1", "@token": str(token), "@task": "proj.sync", "@worker": "w", "@attempt": "1"}
    assert fields == expected
    assert 0 < script_client.pttl(LOCK) <= 5000


def test_the_token_is_the_servers_clock_in_microseconds(verbs, script_client):
    seconds, micros = script_client.time()
    _, token = verbs.acquire("1:a")
    assert 0 <= int(token) - (seconds * 1_000_000 + micros) < 60_000_000


def test_a_held_lock_is_busy_and_names_its_holder(verbs, script_client):
    verbs.acquire("1:a")
    before = script_client.hgetall(LOCK)
    status, left, *holder, at = verbs.acquire("2:b")
    assert (status, holder) == (0, ["1:a", "w", "t"])
    assert 0 < left <= 5000
    assert 0 <= script_client.time()[0] - int(at) // 1_000_000 <= 5
    assert script_client.hgetall(LOCK) == before


def test_the_owner_enters_again_under_the_same_token(verbs, script_client):
    """Semantics 2 and 14: re-entry keeps the token."""
    first = verbs.acquire("1:a")
    assert verbs.acquire("1:a", depth=2) == first
    assert script_client.hget(LOCK, "1:a") == "2"


def test_a_repeated_acquire_changes_nothing(verbs, script_client):
    """Semantics 4: the depth is absolute, so a script that runs twice leaves it where it was."""
    for depth in (1, 2):
        answer = verbs.acquire("1:a", depth=depth)
        assert verbs.acquire("1:a", depth=depth) == answer
        assert script_client.hget(LOCK, "1:a") == str(depth)


def test_re_entering_a_missing_lock_takes_nothing(verbs, script_client):
    assert verbs.acquire("1:a", depth=2) == [-1]
    assert not script_client.exists(LOCK)


def test_entering_again_never_shortens_the_lease(verbs, script_client):
    verbs.acquire("1:a", ttl=60000)
    verbs.acquire("1:a", depth=2, ttl=1000)
    assert script_client.pttl(LOCK) > 50000
    verbs.acquire("1:a", depth=3, ttl=90000)
    assert script_client.pttl(LOCK) > 80000


def test_a_lease_ends_by_itself_to_the_millisecond_not_the_second(verbs, script_client):
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


def test_the_token_grows_across_a_flush(verbs, script_client):
    """Semantics 14: Redis forgets everything, the clock does not."""
    first = int(verbs.acquire("1:a")[1])
    script_client.flushall()
    assert int(verbs.acquire("2:b")[1]) > first


def test_the_token_grows_when_the_servers_clock_goes_back(verbs, script_client):
    """Semantics 14: a remembered token ahead of the clock is the floor, also when the lease then ends."""
    seconds, _ = script_client.time()
    ahead = (seconds + 30) * 1_000_000
    script_client.set(TOKEN, ahead, px=60000)
    assert int(verbs.acquire("1:a", ttl=20)[1]) == ahead + 1
    time.sleep(0.04)
    assert int(verbs.acquire("2:b")[1]) == ahead + 2
    assert script_client.pttl(TOKEN) > 25000


def test_an_uncontended_lock_is_one_key(verbs, script_client):
    verbs.acquire("1:a")
    verbs.release("1:a")
    verbs.acquire("1:b")
    assert script_client.keys() == [LOCK]


def test_a_held_lock_takes_at_most_320_bytes(verbs, script_client):
    """The contract's section 8, for a 40-character key and a Kubernetes pod's names."""
    key = "rlock:{" + "k" * 40 + "}"
    owner = ("0badcafe:8f6c1f0a-6f0e-4e0b-9d7b-2f9a6a1b3c4d", "celery@worker-7f9c8d6b5d-abcde")
    source = (LUA / "acquire.lua").read_text()
    keys = (key, f"{key}:token", f"{key}:waiters", f"{key}:woken")
    task, attempt = "proj.tasks.synchronize_account", 12
    script_client.eval(source, len(keys), *keys, *owner, 1, 30000, task, attempt, 0, "", 0, 0)
    assert sum(script_client.memory_usage(name) for name in script_client.scan_iter()) <= 320


def test_something_else_at_the_key_is_an_error(verbs, script_client):
    """Semantics 16: a foreign type at the key."""
    script_client.set(LOCK, "text")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        verbs.acquire("1:a")
    assert script_client.get(LOCK) == "text"


def test_a_late_acquire_does_not_replace_the_owner_s_next_hold(verbs):
    """Semantics 3: the undo of the late acquire would free the lock under its holder."""
    _, token = verbs.acquire("1:a", attempt="10")
    assert verbs.acquire("1:a", attempt="9") == [-2]
    assert verbs.renew("1:a", token=token) == 1
    assert verbs.release("1:a", fence="9") == -1


def test_a_later_attempt_replaces_the_hold_of_a_lost_reply(verbs):
    _, token = verbs.acquire("1:a", attempt="9")
    status, next_token = verbs.acquire("1:a", attempt="10")
    assert status == 1
    assert next_token > token
