"""Coroutines on asyncio's own event loop and on uvloop, with locks on a real server."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager

import pytest
from celery import Celery, _state

from celery_rlock.asyncio import RLock

LOCK = "rlock:{k}"


def loops():
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_on(new_loop, main):
    """`asyncio.run` on the given kind of loop, on every Python."""
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(asyncio.wait_for(main, 60))
    before = asyncio.get_event_loop_policy()
    policy = asyncio.DefaultEventLoopPolicy()
    policy.new_event_loop = new_loop
    asyncio.set_event_loop_policy(policy)
    try:
        return asyncio.run(asyncio.wait_for(main, 60))
    finally:
        asyncio.set_event_loop_policy(before)


@pytest.fixture(params=loops())
def run(request):
    """Runs a coroutine on each kind of loop in turn."""
    return lambda main: run_on(loops()[request.param], main)


@pytest.fixture
def app_on(monkeypatch):
    """`app_on(url)` makes the app whose settings the locks use."""
    made = []
    for where, name in ((_state, "default_app"), (_state._tls, "current_app")):
        monkeypatch.setattr(where, name, getattr(where, name))  # so that it is restored

    def make(url, **conf):
        app = Celery("asyncio-tests", set_as_current=False)
        app.conf.update(rlock_url=url, **conf)
        app.set_default()
        app.set_current()
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(app_on, server):
    return app_on(server.url)


@pytest.fixture
def rlock(app):
    """Makes asyncio locks on the server."""
    return lambda key="k", **options: RLock(key, **options)


async def until(condition, what, seconds=20):
    """Wait in the loop for a condition, which may be a coroutine function."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < end, f"waited for {what} in vain"
        await asyncio.sleep(0.01)


@contextmanager
def nothing_left(client):
    """After the block, Redis has no lock and no waiter of the key, within a few seconds."""
    yield
    names = [LOCK, f"{LOCK}:waiters", f"{LOCK}:woken"]
    assert not client.exists(*names), {name: client.type(name) for name in names}
