"""The scripts as they lie in `lua/`, and the lock without Celery, on every kind of server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.faults.server import acl

LUA = Path(__file__).resolve().parents[2] / "lua"
LOCK, TOKEN, DONE, UNACKED = "rlock:{k}", "rlock:{k}:token", "rlock:{k}:done:a", "rlock:{k}:unacked:a"
WAITERS, WOKEN, NEWEST = "rlock:{k}:waiters", "rlock:{k}:woken", "rlock:{k}:newest"
CHANNEL = "rlock:wake:"


class Verbs:
    """The scripts with their arguments by name."""

    def __init__(self, client):
        self.client = client

    def acquire(self, owner, depth=1, ttl=5000, task="t", worker="w", **more):
        """[1, token], [0, ms, owner, worker, task, time], [-1] or [2]: see lua/acquire.lua."""
        status, time, *rest = self.raw_acquire(owner, depth, ttl, task, worker, **more)
        return [status, *rest, time] if status == 0 else [status, *rest]

    def raw_acquire(
        self,
        owner,
        depth=1,
        ttl=5000,
        task="t",
        worker="w",
        *,
        attempt="1",
        deadline=0,
        waiter="",
        since=0,
        places=0,
    ):
        keys = (LOCK, TOKEN, WAITERS, WOKEN)
        line = (waiter, since, 60000, places)
        return self._eval("acquire", keys, owner, worker, ttl, task, attempt, deadline, depth, *line)

    def release(self, owner, depth=0, early=0, done=(), successor="", lease=0, fence="", waiter=""):
        keys = (LOCK, TOKEN, WAITERS, WOKEN, *done)
        return self._eval("release", keys, owner, fence, early, depth, successor, lease, waiter)

    def finish(self, owner, republished=False):
        return self.release(owner, done=(DONE, UNACKED) if republished else (DONE,))

    def join(self, waiter, keep=60000):
        return self._eval("join", (LOCK, WAITERS), waiter, keep)

    def wait(self, waiter, since=0, keep=60000):
        return self._eval("wait", (LOCK, WAITERS, WOKEN), waiter, since, keep)

    def pass_on(self, waiter, since, keep=60000):
        return self._eval("pass", (LOCK, WAITERS, WOKEN), waiter, since, keep)

    def replace(self, task_id, holder, since=None, *, task="t", done=(), keep=60000):
        """The call has found the lock busy now, unless `since` says when."""
        seconds, microseconds = self.client.time()
        since = seconds * 1_000_000 + microseconds if since is None else since
        return self._eval("replace", (LOCK, NEWEST, *done), holder, task, task_id, since, keep)

    def redelivery(self, task_id, mark=1):
        return self._eval("redelivery", (LOCK, DONE), f":{task_id}", mark)

    def unacked(self, delivery, keep=60000):
        return self._eval("unacked", (UNACKED, DONE), delivery, keep)

    def acked(self, delivery):
        return self.unacked(delivery, keep=0)

    def renew(self, owner, ttl=5000, token=None):
        """Under the token that stands in Redis, unless another is given."""
        token = token or self.client.hget(LOCK, "@token") or ""
        return self._eval("renew", (LOCK,), owner, token, ttl)

    def _eval(self, verb, keys, *args):
        return self.client.eval((LUA / f"{verb}.lua").read_text(), len(keys), *keys, *args)


@pytest.fixture
def verbs(each_server):
    return Verbs(each_server.client(decode_responses=True))


@pytest.fixture
def script_client(verbs):
    """The client that the scripts run through; replies are text."""
    return verbs.client


#: With this, the lock logs in as the user with the least rights of docs/security.md. `make nemesis` sets it.
LEAST_RIGHTS = bool(os.environ.get("CELERY_RLOCK_LEAST_RIGHTS"))


@pytest.fixture
def lock_url(each_server):
    """The URL of the server, as the lock logs in."""
    if not LEAST_RIGHTS:
        yield each_server.url
        return
    user = acl.make_user(each_server, *acl.rules("lock_replicas"))
    with each_server.client() as client:
        client.acl_log_reset()
    yield acl.login(each_server, user)
    assert acl.refused(each_server, user) == set()


@pytest.fixture
def lock_server(lock_url):
    return RedisLockServer(connect(lock_url))


@pytest.fixture
def redis(lock_server, each_server):
    """What the tests look at the keys with."""
    return each_server.client() if LEAST_RIGHTS else lock_server.client


@pytest.fixture
def rlock(lock_server):
    """Makes locks on every kind of server."""

    def make(key="k", **options):
        return ReentrantLock(key, lock_server=lock_server, **options)

    return make
