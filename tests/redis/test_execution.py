"""What belongs to an execution: its locks, and the code that runs in it."""

from __future__ import annotations

import pytest

from celery_rlock.core.execution import (
    Execution,
    current_execution,
    inherited_execution,
    running,
    stay_current,
)
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from tests.support.processes import free_port


@pytest.fixture
def execution():
    return Execution(Owner("w", "d", "t"))


def test_an_execution_is_the_current_one_inside_its_block_only(execution):
    before = current_execution()
    with running(execution):
        assert current_execution() is inherited_execution() is execution
    assert current_execution() is before
    assert inherited_execution() is None


def test_an_execution_stays_the_current_one_until_it_is_left(execution):
    before = current_execution()
    leave = stay_current(execution)
    assert current_execution() is execution
    leave()
    assert current_execution() is before


def test_a_second_server_that_is_away_does_not_keep_a_lock_from_being_looked_at(rlock):
    """Semantics 16: only what asks the server may say that it is unavailable."""
    away = ReentrantLock("k", lock_server=RedisLockServer(connect(f"redis://127.0.0.1:{free_port()}/0")))
    with rlock() as lock:
        assert (away.depth, away.held, away.token) == (0, False, 0)
        assert lock.held


def test_the_same_key_on_another_server_is_another_lock(rlock, server):
    other_database = server.url.removesuffix("0") + "1"
    other = ReentrantLock("k", lock_server=RedisLockServer(connect(other_database)))
    with rlock() as lock, other:
        assert (lock.depth, other.depth) == (1, 1)
    assert not other.locked()
