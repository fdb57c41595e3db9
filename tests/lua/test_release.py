from __future__ import annotations

from tests.lua.conftest import LOCK, TOKEN


def test_the_last_release_frees_the_lock_and_remembers_its_token(verbs, redis):
    _, token = verbs.acquire("1:a")
    assert verbs.release("1:a") == 1
    assert not redis.exists(LOCK)
    assert redis.get(TOKEN) == token
    assert 0 < redis.pttl(TOKEN) <= 60000


def test_an_inner_release_keeps_the_lock(verbs, redis):
    verbs.acquire("1:a")
    verbs.acquire("1:a", depth=2)
    for _ in range(2):  # Semantics 4: twice is as good as once
        assert verbs.release("1:a", depth=1) == 1
        assert redis.hget(LOCK, "1:a") == "1"


def test_nobody_but_the_owner_releases(verbs, redis):
    """Semantics 3: owner-checked."""
    verbs.acquire("1:a")
    before = redis.hgetall(LOCK)
    assert verbs.release("2:b") == -1
    assert redis.hgetall(LOCK) == before


def test_a_release_of_what_is_gone_says_so(verbs, redis):
    assert verbs.release("1:a") == 0
    assert redis.keys() == []


def test_a_late_release_never_frees_a_successor(verbs, redis):
    """Semantics 3."""
    verbs.acquire("1:a")
    redis.delete(LOCK)
    verbs.acquire("2:b")
    assert verbs.release("1:a") == -1
    assert redis.hget(LOCK, "2:b") == "1"
