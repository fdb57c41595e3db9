"""The lock server does not answer: no task is lost, and no task runs without its lock unless it asks to."""

from __future__ import annotations

import time

import pytest
from celery import states

from celery_rlock import ConfigurationError, LockUnavailable
from tests.support.fleet import make_worker
from tests.worker.awaiting import await_state, lock

QUEUE = "lock-server-away"


@pytest.fixture(scope="module")
def fleet(start_fleet, lock_proxy):
    """Two workers that reach the lock server through the proxy only."""
    with start_fleet(2, concurrency=2, queues=[QUEUE], conf={"rlock_url": lock_proxy.url}) as workers:
        yield workers


@pytest.fixture
def publish(fleet, name):
    """Publishes a task with `name` as its first argument, for the workers behind the proxy."""
    return lambda task, *args: task.apply_async((name, *args), queue=QUEUE)


def test_retry_waits_until_the_server_is_back(publish, lock_server_away, proj, name, records):
    with lock_server_away():
        result = publish(proj.work, 0)
        await_state(result, states.RETRY)
        assert isinstance(result.result, LockUnavailable)
        time.sleep(0.5)
        assert records(name) == []
    assert result.get(timeout=20)["retries"] == 0
    assert len(records(name)) == 2


def test_fail_raises_lock_unavailable(publish, lock_server_away, proj, name, records):
    with lock_server_away(), pytest.raises(LockUnavailable, match=f"lock '{name}' is unavailable"):
        publish(proj.needing).get(timeout=20)
    assert records(name) == []


def test_run_runs_without_the_lock_and_says_so(publish, lock_server_away, proj, name, fleet):
    with lock_server_away():
        fields = publish(proj.carefree).get(timeout=20)
    assert (fields["held"], fields["token"]) == (False, 0)
    assert any(f"runs without its lock: lock '{name}' is unavailable" in worker.log for worker in fleet)


def test_a_server_that_goes_away_during_a_run_does_not_fail_the_task(
    publish, lock_server_away, proj, name, await_start, tell
):
    """Semantics 5: a failing release never turns a finished task into a failure."""
    result = publish(proj.work, 0, True)
    await_start(name)
    with lock_server_away():
        tell(name)
        assert result.get(timeout=30)["held"]
    assert result.state == states.SUCCESS


def test_a_server_that_never_answers_does_not_block_a_task_for_ever(publish, lock_server_silent, proj):
    with lock_server_silent():
        start = time.monotonic()
        with pytest.raises(LockUnavailable, match="TimeoutError"):
            publish(proj.needing).get(timeout=30)
        assert time.monotonic() - start < 15


def test_another_type_at_the_key_fails_the_task_before_it_runs(publish, proj, locks, name, records):
    """Semantics 16: a foreign type at the key."""
    locks.set(lock(name), "text", ex=60)
    with pytest.raises(ConfigurationError, match="not a lock"):
        publish(proj.work, 0).get(timeout=20)
    assert records(name) == []


def test_an_argument_without_a_stable_form_fails_the_task_before_it_runs(publish, proj, name, records):
    """Semantics 16: the task does not run, and the error is its result."""
    with pytest.raises(ConfigurationError, match="no stable form"):
        publish(proj.of_anything).get(timeout=20)
    assert records(name) == []


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"rlock_tll": 3}, "did you mean 'rlock_ttl'"),
        ({"rlock_ttl": 0}, "setting rlock_ttl must be a number of seconds above 0"),
        ({"rlock_url": "http://example/0"}, "unknown scheme 'http'"),
        ({"rlock_prefix": "a{"}, "rlock_prefix must be"),
        ({"rlock_client": "no.such:factory"}, "No module named 'no'"),
    ],
)
def test_a_worker_does_not_start_with_settings_that_cannot_work(project, environment, queue, conf, said):
    """Semantics 16: the error comes when the worker starts."""
    with make_worker(project, environment, conf=conf, queues=[queue]) as worker:
        worker.launch()
        assert worker.wait(30) != 0
        assert said in worker.log
