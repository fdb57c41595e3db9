from __future__ import annotations

from tests.lua.conftest import LOCK


def test_the_owner_starts_its_lease_again(verbs, redis):
    verbs.acquire("1:a", ttl=2000)
    assert verbs.renew("1:a", ttl=60000) == 1
    assert redis.pttl(LOCK) > 50000


def test_a_longer_lease_is_kept(verbs, redis):
    verbs.acquire("1:a", ttl=60000)
    assert verbs.renew("1:a", ttl=1000) == 1
    assert redis.pttl(LOCK) > 50000


def test_nobody_but_the_owner_renews(verbs, redis):
    """Semantics 3: owner-checked."""
    verbs.acquire("1:a", ttl=2000)
    assert verbs.renew("2:b", ttl=60000) == 0
    assert redis.pttl(LOCK) <= 2000


def test_what_is_gone_is_not_renewed(verbs, redis):
    assert verbs.renew("1:a") == 0
    assert redis.keys() == []
