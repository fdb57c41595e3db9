"""What happens when the lock server does not answer: nothing is lost, nothing runs without asking to."""

from __future__ import annotations

import time

import pytest
from celery import states

from celery_rlock import ConfigurationError, LockUnavailable
from tests.conftest import DEFAULT_KIND
from tests.integration.conftest import PROJ
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.workers import Worker


@pytest.fixture(scope="module")
def lock_server(proj):
    """A server for the locks alone, behind a proxy; broker and results stay on the usual one."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def lock_proxy(lock_server):
    with Proxy(lock_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def fleet(start_fleet, lock_proxy):
    with start_fleet(2, concurrency=2, conf={"rlock_url": lock_proxy.url}) as workers:
        yield workers


@pytest.fixture
def outage(fleet, lock_proxy):
    """The lock server is away inside the block."""
    lock_proxy.refuse()
    yield lock_proxy.accept
    lock_proxy.accept()


def test_retry_waits_until_the_server_is_back(outage, proj, name, records):
    result = proj.work.delay(name, 0)
    wait_until(lambda: result.state == states.RETRY, timeout=20, what="the task to wait")
    assert isinstance(result.result, LockUnavailable)
    time.sleep(1)
    assert records(name) == []
    outage()
    assert result.get(timeout=20)["retries"] == 0
    assert len(records(name)) == 2


def test_fail_raises(outage, proj, name, records):
    with pytest.raises(LockUnavailable, match=f"lock '{name}' is unavailable"):
        proj.needing.delay(name).get(timeout=20)
    assert records(name) == []


def test_run_runs_without_the_lock_and_says_so(outage, proj, name, fleet):
    fields = proj.carefree.delay(name).get(timeout=20)
    assert (fields["held"], fields["token"]) == (False, 0)
    assert any(f"run: lock '{name}' is unavailable" in worker.log for worker in fleet)


def test_a_server_that_goes_away_in_mid_run_does_not_fail_the_task(proj, fleet, lock_proxy, name, records):
    """Semantics 5: a failing release never turns a finished task into a failure."""
    result = proj.work.delay(name, 1.5)
    wait_until(lambda: records(name), timeout=20, what="the run")
    lock_proxy.refuse()
    try:
        assert result.get(timeout=30)["held"]
    finally:
        lock_proxy.accept()
    assert result.state == states.SUCCESS


def test_a_server_that_accepts_and_never_answers_hangs_nobody(proj, fleet, lock_proxy, name):
    lock_proxy.freeze()
    try:
        start = time.monotonic()
        with pytest.raises(LockUnavailable, match="TimeoutError"):
            proj.needing.delay(name).get(timeout=30)
        assert time.monotonic() - start < 15
    finally:
        lock_proxy.thaw()


def test_something_else_at_the_key_fails_the_task_before_it_runs(proj, fleet, lock_server, name, records):
    """Semantics 16: a foreign type at the key."""
    lock_server.client().set(f"rlock:{{{name}}}", "text")
    with pytest.raises(ConfigurationError, match="not a lock"):
        proj.work.delay(name, 0).get(timeout=20)
    assert records(name) == []


def test_an_argument_without_a_stable_form_fails_the_task_before_it_runs(proj, fleet, name, records):
    """Semantics 16: nothing runs, nothing is lost: the error is the task's result."""
    with pytest.raises(ConfigurationError, match="no stable form"):
        proj.of_anything.delay(name).get(timeout=20)
    assert records(name) == []


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ('{"rlock_tll": 3}', "did you mean 'rlock_ttl'"),
        ('{"rlock_ttl": 0}', "setting rlock_ttl must be a number of seconds above 0"),
        ('{"rlock_url": "http://example/0"}', "unknown scheme 'http'"),
        ('{"rlock_prefix": "a{"}', "rlock_prefix must be"),
        ('{"rlock_client": "no.such:factory"}', "No module named 'no'"),
    ],
)
def test_a_worker_does_not_start_with_settings_that_cannot_work(environment, conf, said):
    """Semantics 16: when the worker starts."""
    worker = Worker(PROJ, env={**environment, "RLOCK_TEST_CONF": conf})
    worker.launch()
    try:
        assert worker.wait(30) != 0
        assert said in worker.log
    finally:
        worker.stop(timeout=0)
