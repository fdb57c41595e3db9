from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rlock.options.options import Options
from celery_rlock.running.busy import backoff

STEADY = Options(jitter=False)


def test_it_doubles_up_to_a_cap():
    assert [backoff(STEADY, attempt) for attempt in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


@given(st.integers(0, 10**6))
def test_it_never_grows_beyond_its_cap(attempt):
    assert 0 <= backoff(Options(), attempt) <= 30
    assert backoff(STEADY, attempt) <= 30


def test_jitter_is_full():
    delays = [backoff(Options(backoff=10, backoff_max=10), 0) for _ in range(2000)]
    assert min(delays) < 1
    assert max(delays) > 9
    assert sum(delays) / len(delays) == pytest.approx(5, rel=0.2)


def test_no_waiter_stays_away_longer_than_the_holders_lease():
    assert backoff(STEADY, 10, lease_left=2) == pytest.approx(2.05)
    assert backoff(STEADY, 0, lease_left=20) == 0.5
