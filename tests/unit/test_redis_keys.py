from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_rlock import ConfigurationError
from celery_rlock.core.name import Name, Owner, check_prefix

anything = st.text(st.characters(codec=None), min_size=1)  # lone surrogates too


def tag(name: str) -> str:
    """What Redis takes as the hash tag: between the first brace and the next closing one."""
    return name[name.index("{") + 1 : name.index("}")]


@given(anything)
def test_no_text_breaks_the_hash_tag_or_the_prefix(key):
    """Semantics 15: user text in a key can break neither."""
    name = Name.of(key)
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
    assert (Name.of(one).lock == Name.of(other).lock) == (one == other)


@pytest.mark.parametrize("key", ["{a}", "}", "a}{b", "a\nb", "\x00", "a%7Db", "\ud800"])
def test_what_could_break_a_name_is_escaped(key):
    """Semantics 16: braces and newlines in a key."""
    inside = tag(Name.of(key).lock)
    assert not set("{}\n\x00") & set(inside)
    assert Name.of(key).key == key


def test_plain_keys_and_emoji_stay_readable():
    assert Name.of("account:7").lock == "rlock:{account:7}"
    assert Name.of("konto:ü🔒").lock == "rlock:{konto:ü🔒}"


def test_a_long_key_is_digested():
    """Semantics 16: a key of 10 kB."""
    long, longer = "x" * 10_000, "x" * 10_001
    assert len(Name.of(long).lock) < 100
    assert Name.of(long).lock != Name.of(longer).lock
    assert Name.of(long).lock.startswith("rlock:{xxxx")


@pytest.mark.parametrize("key", ["", None, 7, b"account:7"])
def test_a_key_that_is_no_text_is_an_error(key):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="non-empty str"):
        Name.of(key)


@pytest.mark.parametrize("prefix", ["a{", "a}b", "a\n", None, 7])
def test_a_prefix_that_would_break_the_tag_is_an_error(prefix):
    with pytest.raises(ConfigurationError, match="rlock_prefix"):
        check_prefix(prefix)


def test_an_owner_is_worker_delivery_and_task():
    owner = Owner("celery@pod-1", "0badcafe", "id-1")
    assert str(owner) == "celery@pod-1/0badcafe:id-1"
    assert owner.field == "0badcafe:id-1"
