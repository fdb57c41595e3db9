"""The lock server does not answer when a task is published."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from celery_rlock import LockUnavailable, settings
from tests.support.faults import named
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.unique.conftest import port_of


@contextmanager
def lock_server_at(app, url):
    """Broker and results stay where they are."""
    app.conf.rlock_url = url
    settings._servers.pop(app, None)
    try:
        yield
    finally:
        app.conf.rlock_url = None
        settings._servers.pop(app, None)


@pytest.fixture
def outage(proj):
    with lock_server_at(proj.app, f"redis://127.0.0.1:{free_port()}/0"):
        yield


@pytest.fixture
def through(proj):
    with (
        Proxy(port_of(proj.app.conf.broker_url)) as proxy,
        lock_server_at(proj.app, proxy.url + "?socket_timeout=0.5"),
    ):
        yield proxy


@pytest.mark.usefixtures("outage")
def test_it_is_published_without_the_lock(proj, name, idle, messages):
    results = [proj.once.apply_async((name,), queue=idle) for _ in range(2)]
    assert {message["headers"]["id"] for message in messages(idle)} == {result.id for result in results}


@pytest.mark.usefixtures("outage")
def test_with_fail_nothing_is_published(proj, name, idle, messages):
    with pytest.raises(LockUnavailable, match=f"lock '{name}' is unavailable"):
        proj.once_for_sure.apply_async((name,), queue=idle)
    assert messages(idle) == []


@pytest.mark.usefixtures("outage")
def test_fail_may_be_chosen_for_one_call(proj, name, idle, messages):
    with pytest.raises(LockUnavailable):
        proj.once.apply_async((name,), queue=idle, lock_unavailable="fail")
    assert messages(idle) == []


def test_what_ran_on_the_server_though_the_reply_was_lost_counts(through, proj, name, idle, holder, messages):
    """Semantics 4: the connection broke, and the script is sent again."""
    proj.once.apply_async((f"{name}-before",), queue=idle)
    rule = through.lose_reply(named("EVALSHA"))
    results = [proj.once.apply_async((name,), queue=idle) for _ in range(2)]
    assert rule.left == 0
    assert results[0].id == results[1].id
    assert holder(name) == f"queued:{results[0].id}"
    assert len(messages(idle)) == 2


def test_a_lock_that_nobody_is_sure_of_is_freed(through, proj, name, idle, holder, messages):
    """Semantics 4: no answer in time, so it is published without, and nothing is left behind."""
    proj.once.apply_async((f"{name}-before",), queue=idle)
    rule = through.lose_reply(named("EVALSHA"), how="swallow")
    result = proj.once.apply_async((name,), queue=idle)
    assert rule.left == 0
    assert messages(idle)[0]["headers"]["id"] == result.id
    assert holder(name) is None
