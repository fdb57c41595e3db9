"""Each script, called as it lies in the file, on every kind of server."""

from __future__ import annotations

from pathlib import Path

import pytest

LUA = Path(__file__).resolve().parents[2] / "lua"
LOCK, TOKEN, DONE = "rlock:{k}", "rlock:{k}:token", "rlock:{k}:done:a:0"
WAITERS, WOKEN = "rlock:{k}:waiters", "rlock:{k}:woken"
CHANNEL = "rlock:wake:"


class Verbs:
    """The scripts with their arguments by name."""

    def __init__(self, client):
        self.client = client

    def acquire(self, owner, depth=1, ttl=5000, task="t", worker="w"):
        return self._eval("acquire", (LOCK, TOKEN), owner, worker, depth, ttl, task)

    def release(self, owner, depth=0, early=0, done=(), heir="", lease=0):
        keys = (LOCK, TOKEN, WAITERS, WOKEN, *done)
        return self._eval("release", keys, owner, depth, 60000, early, CHANNEL, 1000, 9000, heir, lease)

    def finish(self, owner):
        return self.release(owner, done=(DONE,))

    def wait(self, waiter, since="", keep=60000, trust=1000):
        return self._eval("wait", (LOCK, WAITERS, WOKEN), waiter, since, keep, trust)

    def copy(self, task_id):
        return self._eval("copy", (LOCK, DONE), task_id)

    def renew(self, owner, ttl=5000):
        return self._eval("renew", (LOCK,), owner, ttl)

    def _eval(self, verb, keys, *args):
        return self.client.eval((LUA / f"{verb}.lua").read_text(), len(keys), *keys, *args)


@pytest.fixture
def verbs(each_server):
    return Verbs(each_server.client(decode_responses=True))


@pytest.fixture
def redis(verbs):
    return verbs.client
