"""Semantics 5: a prefork run that is ended from outside still frees its lock at once."""

from __future__ import annotations

import signal
import time

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded

from tests.support.processes import wait_until


@pytest.fixture
def worker(start_fleet, proj):
    with start_fleet(1, concurrency=2) as [worker]:
        yield worker


@pytest.fixture
def running(proj, name, records, store):
    """Sends a task and waits until it runs; the lock's lease is far longer than the test."""

    def start(task, *args):
        result = task.delay(name, *args)
        wait_until(lambda: records(name), timeout=20, what="the task to run")
        assert store.exists(f"rlock:{{{name}}}")
        return result

    return start


@pytest.fixture
def free(store, name):
    """Waits until the key is free, and says after how many seconds it was."""

    def wait():
        start = time.monotonic()
        wait_until(lambda: not store.exists(f"rlock:{{{name}}}"), timeout=10, what="the lock to be free")
        return time.monotonic() - start

    return wait


def test_soft_time_limit(worker, proj, running, free):
    """Semantics 5: soft time limit."""
    result = running(proj.softly_limited)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=20)
    assert free() < 5


def test_revoke_with_sigterm(worker, proj, running, free):
    """Semantics 5: SIGTERM termination."""
    result = running(proj.work, 60)
    proj.app.control.revoke(result.id, terminate=True, signal="SIGTERM")
    assert free() < 8
    wait_until(lambda: result.state == states.REVOKED, timeout=10, what="the task to be revoked")


@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt"])
def test_an_exit_from_inside(worker, proj, name, free, records, how):
    """Semantics 5: SystemExit."""
    proj.ending.delay(name, how)
    wait_until(lambda: len(records(name)) == 2, timeout=20, what="the run")
    assert free() < 8
    assert proj.work.delay(name, 0).get(timeout=20)["held"]


def test_warm_shutdown_lets_the_run_end(worker, proj, running, free, records, name):
    """Semantics 5: warm shutdown."""
    result = running(proj.work, 2)
    worker.signal(signal.SIGTERM)
    assert result.get(timeout=20)["held"]
    assert free() < 5
    assert worker.wait(20) == 0
    assert len(records(name)) == 2


def test_cold_shutdown(worker, proj, running, free):
    """Semantics 5: cold shutdown."""
    running(proj.work, 60)
    worker.signal(signal.SIGQUIT)
    assert free() < 10
    worker.wait(20)


def test_until_postrun_holds_the_lock_until_the_result_is_stored(worker, proj, name, store):
    """`lock_until="postrun"`: whoever sees the result may find the lock held, never a run under way."""
    result = proj.until_postrun.delay(name)
    assert result.get(timeout=20)["held"]
    wait_until(lambda: not store.exists(f"rlock:{{{name}}}"), timeout=10, what="the release in postrun")


def test_a_lock_that_a_task_forgot_is_freed_with_its_execution(worker, proj, name, store):
    proj.leaking.delay(name).get(timeout=20)
    wait_until(lambda: not store.exists(f"rlock:{{{name}-inner}}"), timeout=10, what="the inner lock")
    assert f"never released lock '{name}-inner'" in worker.log


def test_max_hold_ends_the_renewal(worker, proj, name):
    """Semantics 7 and 8: past `lock_max_hold` the lease ends, and that is told."""
    assert proj.held_too_long.delay(name).get(timeout=30) == {"before": True, "lost": True}
