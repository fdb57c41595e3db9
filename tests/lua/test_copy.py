"""Semantics 10: a copy of the holder's message learns how the holder's run ended."""

from __future__ import annotations

from tests.lua.conftest import DONE, LOCK, TOKEN


def test_a_copy_of_the_holders_message_is_busy_and_leaves_its_mark(verbs, redis):
    """Semantics 10."""
    verbs.acquire("1:a")
    assert verbs.acquire("2:a")[0] == 0
    assert redis.hget(LOCK, "@copy") == "1"


def test_another_task_leaves_no_mark(verbs, redis):
    verbs.acquire("1:a")
    verbs.acquire("2:b")
    verbs.acquire("2:xa")
    assert not redis.hexists(LOCK, "@copy")


def test_an_early_release_frees_the_lock_when_there_is_no_copy(verbs, redis):
    verbs.acquire("1:a")
    assert verbs.release("1:a", early=1) == 1
    assert redis.keys() == [TOKEN]


def test_an_early_release_keeps_the_lock_for_a_copy(verbs, redis):
    """Semantics 10: until the end is known."""
    verbs.acquire("1:a")
    verbs.acquire("2:a")
    assert verbs.release("1:a", early=1) == 2
    assert redis.hget(LOCK, "1:a") == "1"
    assert verbs.release("1:a") == 1
    assert redis.keys() == [TOKEN]


def test_a_finished_task_tells_its_copies(verbs, redis):
    """Semantics 10: when that run ends the copy is dropped."""
    verbs.acquire("1:a")
    assert verbs.copy("a") == 1
    assert verbs.finish("1:a") == 1
    assert not redis.exists(LOCK)
    assert 0 < redis.pttl(DONE) <= 9000
    assert verbs.copy("a") == 2
    assert int(redis.get(TOKEN)) > 0


def test_a_finished_task_without_copies_leaves_no_word(verbs, redis):
    verbs.acquire("1:a")
    assert verbs.finish("1:a") == 1
    assert redis.keys() == [TOKEN]


def test_nobody_but_the_owner_finishes(verbs, redis):
    """Semantics 3."""
    assert verbs.finish("1:a") == 0
    verbs.acquire("1:a")
    verbs.copy("a")
    assert verbs.finish("2:a") == -1
    assert redis.hget(LOCK, "1:a") == "1"
    assert not redis.exists(DONE)


def test_a_copy_of_what_does_not_run_is_neither(verbs, redis):
    assert verbs.copy("a") == 0
    verbs.acquire("1:b")
    assert verbs.copy("a") == 0
    assert not redis.hexists(LOCK, "@copy")
