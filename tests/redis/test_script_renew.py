from __future__ import annotations

from tests.redis.conftest import LOCK


def test_the_owner_starts_its_lease_again(verbs, script_client):
    verbs.acquire("1:a", ttl=2000)
    assert verbs.renew("1:a", ttl=60000) == 1
    assert script_client.pttl(LOCK) > 50000


def test_a_longer_lease_is_kept(verbs, script_client):
    verbs.acquire("1:a", ttl=60000)
    assert verbs.renew("1:a", ttl=1000) == 1
    assert script_client.pttl(LOCK) > 50000


def test_only_the_owner_renews(verbs, script_client):
    """Semantics 3: owner-checked."""
    verbs.acquire("1:a", ttl=2000)
    assert verbs.renew("2:b", ttl=60000) == 0
    assert script_client.pttl(LOCK) <= 2000


def test_a_missing_lock_is_not_renewed(verbs, script_client):
    assert verbs.renew("1:a") == 0
    assert script_client.keys() == []
