"""Histories under faults: short runs with fixed seeds. `make nemesis` runs longer ones. See docs/proof.md."""

from __future__ import annotations

import os

import pytest

from tests.nemesis.lock_servers import ReplicatedCluster, Sentinel, Standalone, Volatile
from tests.nemesis.nemesis import plague
from tests.nemesis.worlds import FleetWorld, RLockWorld

SEED = int(os.environ.get("CELERY_RLOCK_SEED", "1"))
SHORT = 8.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("setup", [Volatile, Sentinel, ReplicatedCluster])
def test_processes_with_rlocks_keep_every_promise(setup):
    """Semantics 1, 2, 3, 7 and 14: also while network, servers and processes fail."""
    with setup() as servers, RLockWorld(servers, SEED) as world:
        result = plague(world, SHORT)
    print(result)
    assert not result.violations, result
    assert result.ownerships > 0
    assert result.faults


def test_a_fleet_keeps_every_promise():
    """Semantics 1, 6, 8, 9, 10 and 17: no overlap, and no task is lost."""
    with Standalone() as servers, FleetWorld(servers, SEED) as world:
        result = plague(world, 1.5 * SHORT)
    print(result)
    assert not result.violations, result
    assert result.tasks > 0


def test_the_nemesis_finds_a_release_that_is_not_fenced(tmp_path):
    """A late release frees the next hold of its thread, with one of a few seeds. docs/proof.md has more."""
    for seed in range(2, 8):
        with Standalone() as servers, RLockWorld(servers, seed, mutation="release_is_not_fenced") as world:
            result = plague(world, 10, only=["requests late"], pictures=tmp_path)
        if result.violations:
            break
    assert "exclusive" in {violation.check for violation in result.violations}
    assert result.pictures[0].read_text().startswith("<svg")
