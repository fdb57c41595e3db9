"""Semantics 5: a prefork run that is ended from outside still frees its lock at once."""

from __future__ import annotations

import signal
import time

import pytest
from celery import states
from celery.exceptions import SoftTimeLimitExceeded

from tests.support.processes import wait_until
from tests.worker.awaiting import await_state, lock


@pytest.fixture
def start(name, await_start, locks):
    """Sends a task and returns its result when it runs; the lock's lease is far longer than the test."""

    def start(task, *args, **options):
        result = task.apply_async((name, *args), **options)
        await_start(name)
        assert locks.exists(lock(name))
        return result

    return start


@pytest.fixture
def free(locks, name):
    """Waits until the key is free, and returns how many seconds that took."""

    def wait():
        start = time.monotonic()
        wait_until(lambda: not locks.exists(lock(name)), timeout=10, what="the lock to be free")
        return time.monotonic() - start

    return wait


def test_a_soft_time_limit_frees_the_lock(fleet, proj, start, free):
    """Semantics 5: soft time limit."""
    result = start(proj.softly_limited)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=20)
    assert free() < 5


def test_a_revoke_with_sigterm_frees_the_lock(doomed, proj, start, free, queue):
    """Semantics 5: SIGTERM termination."""
    result = start(proj.work, 60, queue=queue)
    proj.app.control.revoke(result.id, terminate=True, signal="SIGTERM")
    assert free() < 8
    await_state(result, states.REVOKED)


@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt"])
def test_an_exit_inside_a_run_frees_the_lock(doomed, fleet, proj, name, queue, free, records, how):
    """Semantics 5: SystemExit."""
    proj.ending.apply_async((name, how), queue=queue)
    wait_until(lambda: records(name, "end"), timeout=20, what="the run")
    assert free() < 8
    assert proj.work.delay(name, 0).get(timeout=20)["held"]


def test_a_warm_shutdown_lets_the_run_end(doomed, proj, start, free, records, name, queue, tell):
    """Semantics 5: warm shutdown."""
    result = start(proj.work, 0, True, queue=queue)
    doomed.signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in doomed.log, timeout=20, what="the shutdown to begin")
    tell(name)
    assert result.get(timeout=20)["held"]
    assert free() < 5
    assert doomed.wait(20) == 0
    assert [entry["event"] for entry in records(name)] == ["start", "end"]


def test_a_cold_shutdown_frees_the_lock(doomed, proj, start, free, queue):
    """Semantics 5: cold shutdown."""
    start(proj.work, 60, queue=queue)
    doomed.signal(signal.SIGQUIT)
    assert free() < 10
    doomed.wait(20)


def test_a_handler_enters_the_lock_that_its_run_still_holds(fleet, proj, name, records, await_free):
    """Semantics 2: until `task_postrun` the handlers belong to the execution."""
    owner = proj.until_postrun_with_handler.delay(name).get(timeout=20)["owner"]
    [entry] = wait_until(lambda: records(name, "handler"), timeout=20, what="the handler")
    assert (entry["entered"], entry["other"]) == (True, owner)
    await_free(name)


def test_until_postrun_holds_the_lock_until_the_result_is_stored(fleet, proj, name, await_free):
    """`lock_until="postrun"`: a caller that has the result may find the key held, but no run under way."""
    result = proj.until_postrun.delay(name)
    assert result.get(timeout=20)["held"]
    await_free(name)


def test_a_lock_that_a_task_did_not_release_is_freed_with_its_run(fleet, proj, name, await_free):
    proj.leaking.delay(name).get(timeout=20)
    await_free(f"{name}-inner")
    assert any(f"never released lock '{name}-inner'" in worker.log for worker in fleet)


def test_max_hold_ends_the_renewal(fleet, proj, name):
    """Semantics 7 and 8: after `lock_max_hold` the lease ends, and the run is told."""
    assert proj.held_too_long.delay(name).get(timeout=30) == {"before": True, "lost": True}
