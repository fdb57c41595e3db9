"""Threads, gevent and solo have no children that could be killed alone; what can happen to them."""

from __future__ import annotations

import signal

import pytest

SUCCESSORS = "after-other-pools"
SHORT_LEASE = 3  # of `short_lease_victim`
POOLS = ["threads", "gevent", "solo"]


@pytest.fixture(scope="module")
def spare(start_fleet):
    """The worker that lives on and runs the successors."""
    with start_fleet(1, concurrency=2, queues=[SUCCESSORS]) as [spare]:
        yield spare


@pytest.fixture
def end(start_fleet, spare, queue, ending_of):
    def run(ending, pool, cause, **options):
        with start_fleet(1, pool=pool, concurrency=2, queues=[queue]) as [worker]:
            return ending_of(
                ending, worker, cause=cause, queue=queue, successors=SUCCESSORS, pool=pool, **options
            )

    return run


@pytest.mark.parametrize("pool", POOLS)
def test_worker_killed(end, pool):
    """Semantics 7: free after `lock_ttl` at the latest."""
    ending = end(
        f"main kill -9, lease {SHORT_LEASE} s",
        pool,
        lambda victim: victim.worker.kill(),
        task="short_lease_victim",
    )
    assert ending.free_after < SHORT_LEASE + 2
    assert ending.completed == 0


@pytest.mark.parametrize("pool", POOLS)
def test_warm_shutdown_lets_the_run_end(end, pool):
    """Semantics 5: warm shutdown."""

    def stop(victim):
        victim.worker.signal(signal.SIGTERM)
        assert victim.worker.wait(20) == 0

    ending = end("warm shutdown", pool, stop, task="late_victim", args=("loop", 1.5), completions=1)
    assert ending.free_after < 5
    assert ending.completed == 1


def test_revoke_with_terminate_on_gevent(end):
    """Semantics 5: the greenlet is killed, and leaves its lock on its way out."""

    def revoke(victim):
        victim.client.control.revoke(victim.id, terminate=True)

    ending = end("revoke, terminate", "gevent", revoke)
    assert ending.free_after < 5
    assert ending.completed == 0
