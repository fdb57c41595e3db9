"""`lock_from="publish"` while the lock server does not answer."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_rlock import LockedTask, LockUnavailable
from tests.support.faults import named
from tests.support.outages import unreachable_url
from tests.support.processes import wait_until
from tests.support.proxy import Proxy


@pytest.fixture
def publish_through(fleet_redis, queue):
    """Publishes a unique task whose locks are at another URL; broker and results stay where they are."""

    def through(url, **task_options):
        app = Celery("unique", broker=fleet_redis.url, backend=fleet_redis.url, set_as_current=False)
        app.conf.rlock_url = url

        @app.task(base=LockedTask, shared=False, lock_key="{name}", lock_from="publish", **task_options)
        def once(name):
            return name

        return lambda name, **options: once.apply_async((name,), queue=queue, **options)

    return through


@pytest.fixture
def through(redis_for_locks):
    with Proxy(redis_for_locks.port) as proxy:
        yield proxy


@pytest.fixture
def publish(publish_through, through):
    """Publishes through a proxy in front of the lock server."""
    return publish_through(through.url + "?socket_timeout=0.5")


def test_the_task_is_published_without_the_lock(publish_through, name, queue, messages):
    publish = publish_through(unreachable_url())
    results = [publish(name) for _ in range(2)]
    assert {message["headers"]["id"] for message in messages(queue)} == {result.id for result in results}


@pytest.mark.parametrize("chosen_by", ["task", "call"])
def test_with_fail_the_task_is_not_published(publish_through, name, queue, messages, chosen_by):
    fail = {"lock_unavailable": "fail"}
    of_task, of_call = (fail, {}) if chosen_by == "task" else ({}, fail)
    publish = publish_through(unreachable_url(), **of_task)
    with pytest.raises(LockUnavailable, match=f"lock '{name}' is unavailable"):
        publish(name, **of_call)
    assert messages(queue) == []


def test_a_lock_that_was_taken_counts_though_its_reply_was_lost(
    through, publish, name, queue, holder, messages
):
    """Semantics 4: the connection broke, and the script is sent again."""
    publish(f"{name}-before")
    rule = through.lose_reply(named("EVALSHA"))
    results = [publish(name) for _ in range(2)]
    assert rule.left == 0
    assert results[0].id == results[1].id
    assert holder(name) == f"queued:{results[0].id}"
    assert len(messages(queue)) == 2


def test_a_lock_that_was_not_confirmed_in_time_is_freed(through, publish, name, queue, holder, messages):
    """Semantics 4: the task is published without the lock, and no lock is left behind."""
    publish(f"{name}-before")
    rule = through.lose_reply(named("EVALSHA"), how="swallow")
    result = publish(name)
    assert rule.left == 0
    assert messages(queue)[0]["headers"]["id"] == result.id
    wait_until(lambda: holder(name) is None, timeout=20, what="the lock to be free")
