from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_rlock import ConfigurationError
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys, check_prefix

anything = st.text(st.characters(codec=None), min_size=1)  # lone surrogates too


def tag(name: str) -> str:
    """What Redis takes as the hash tag: between the first brace and the next closing one."""
    return name[name.index("{") + 1 : name.index("}")]


@given(anything)
def test_no_text_breaks_the_hash_tag_or_the_prefix(key):
    """Semantics 15: user text in a key can break neither."""
    name = RedisKeys.of(key)
    assert name.lock.startswith("rlock:{")
    assert name.lock.endswith("}")
    assert name.lock == "rlock:{" + tag(name.lock) + "}"
    assert tag(name.lock)
    assert key_slot(name.lock.encode()) == key_slot(name.token.encode())
    assert len(name.lock.encode()) <= 250
    assert name.lock.isprintable() or not key.isprintable()


@given(anything, anything)
def test_different_keys_have_different_names(one, other):
    """Semantics 15: no collisions."""
    assert (RedisKeys.of(one).lock == RedisKeys.of(other).lock) == (one == other)


@pytest.mark.parametrize("key", ["{a}", "}", "a}{b", "a\nb", "\x00", "a%7Db", "\ud800"])
def test_what_could_break_a_name_is_escaped(key):
    """Semantics 16: braces and newlines in a key."""
    inside = tag(RedisKeys.of(key).lock)
    assert not set("{}\n\x00") & set(inside)
    assert RedisKeys.of(key).key == key


def test_plain_keys_and_emoji_stay_readable():
    assert RedisKeys.of("account:7").lock == "rlock:{account:7}"
    assert RedisKeys.of("konto:ü🔒").lock == "rlock:{konto:ü🔒}"


def test_a_long_key_is_digested():
    """Semantics 16: a key of 10 kB."""
    long, longer = "x" * 10_000, "x" * 10_001
    assert len(RedisKeys.of(long).lock) < 100
    assert RedisKeys.of(long).lock != RedisKeys.of(longer).lock
    assert RedisKeys.of(long).lock.startswith("rlock:{xxxx")


def test_what_must_be_escaped_costs_a_long_key_no_more_than_other_text():
    """Of ten million braces, each one was escaped: 17 seconds."""

    def seconds(char):
        start = time.process_time()
        for _ in range(3):
            RedisKeys.of(char * 1_000_000)
        return time.process_time() - start

    assert seconds("{") < 20 * seconds("x")


@pytest.mark.parametrize("key", ["{" * 40, "{" * 100, "x" * 39 + "{" * 200, "\ud800" * 300])
def test_a_key_that_becomes_long_by_its_escapes_is_digested_too(key):
    name = RedisKeys.of(key).lock
    assert len(name.encode()) < 250
    assert len({name, RedisKeys.of(key + "x").lock, RedisKeys.of("x" + key).lock}) == 3


@pytest.mark.parametrize("key", ["", None, 7, b"account:7"])
def test_a_key_that_is_no_text_is_an_error(key):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="non-empty str"):
        RedisKeys.of(key)


@pytest.mark.parametrize("prefix", ["a{", "a}b", "a\n", None, 7])
def test_a_prefix_that_would_break_the_tag_is_an_error(prefix):
    with pytest.raises(ConfigurationError, match="rlock_prefix"):
        check_prefix(prefix)


def test_an_owner_is_worker_delivery_and_task():
    owner = Owner("celery@pod-1", "0badcafe", "id-1")
    assert str(owner) == "celery@pod-1/0badcafe:id-1"
    assert owner.field == "0badcafe:id-1"
