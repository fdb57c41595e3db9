"""Under faults of the primary, no two holders of one key behind Sentinel believe in their lock at once."""

from __future__ import annotations

import os

import pytest

from tests.faults.topology.overlap_checker import Ownership, check, documented, overlaps, plain

SHORT = 6.0
LONG = 60.0

#: The long test runs with these; `CELERY_RLOCK_SEEDS=1,2,3` chooses others.
SEEDS = [int(seed) for seed in os.environ.get("CELERY_RLOCK_SEEDS", "1").split(",")]


def test_the_checker_counts_each_pair_that_shared_a_moment():
    first = Ownership("a", "1", 1, start=0.0, end=5.0)
    inside = Ownership("a", "2", 2, start=1.0, end=2.0)
    later = Ownership("a", "3", 3, start=2.0, end=6.0)
    after = Ownership("a", "1", 4, start=6.0, end=7.0)
    elsewhere = Ownership("b", "4", 5, start=1.0, end=2.0)
    found = overlaps([after, later, elsewhere, inside, first])
    assert [(one.first, one.second) for one in found] == [(first, inside), (first, later)]
    assert [one.seconds for one in found] == [1.0, 3.0]


def test_a_primary_that_is_switched_alive_confirms_nothing_more():
    """Semantics 1: SENTINEL FAILOVER leaves an old primary that still accepts writes for seconds."""
    with plain() as setup:
        result = check(setup, seed=1, seconds=SHORT, faults=("switch",))
    assert result.faults["switch"] > 0
    assert result.ownerships > 0
    assert not result.overlaps, result


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_documented_set_up_has_no_overlaps(seed):
    """Semantics 1: docs/deployments.md, "A set-up without overlaps"."""
    with documented() as setup:
        result = check(setup, seed=seed, seconds=LONG, replicas=1)
    assert len(result.faults) > 1
    assert result.ownerships > 0
    assert not result.overlaps, result
