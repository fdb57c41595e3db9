"""Tasks that lock several keys at once."""

from __future__ import annotations

from functools import cache

from tests.support.app import busy_for, record, store, wait_until_told
from tests.worker.proj.app import lose, task

BOTH = ["account:{source}", lambda source, target, **_: f"account:{target}"]


@task(lock_key=["account:{source}", "account:{target}"])
def transfer(self, source, target, seconds=0.0, until_told=None):
    """With `until_told` it runs until the test calls `tell(until_told)`."""
    for account in sorted({source, target}):
        record(account, "start", id=self.request.id, tokens=self.lock.tokens)
    busy_for(seconds)
    if until_told:
        wait_until_told(until_told)
    for account in sorted({source, target}):
        record(account, "end", id=self.request.id)
    return {"keys": list(self.lock.keys), "tokens": self.lock.tokens, "held": self.lock.held}


@task(lock_key=BOTH, lock_ttl=1)
def transfer_renewed(self, source, target, seconds):
    before = self.lock.tokens
    busy_for(seconds)
    return {"held": self.lock.held, "lost": self.lock.lost, "same": self.lock.tokens == before}


@task(lock_key=BOTH, lock_ttl=1)
def transfer_losing(self, source, target, loses):
    lose(f"account:{loses}")
    busy_for(1.5)
    return {"held": self.lock.held, "lost": self.lock.lost}


@task(lock_key=BOTH, acks_late=True)
def transfer_late(self, source, target, seconds=0.0):
    self.span(source, seconds)
    return self.request.id


@task(lock_key=BOTH, lock_wait=30, lock_busy="fail")
def transfer_waiting(self, source, target):
    return {"tokens": self.lock.tokens}


@task(lock_key=lambda accounts: [f"account:{account}" for account in accounts])
def transfer_all(self, accounts):
    return {"keys": list(self.lock.keys), "tokens": self.lock.tokens}


@cache
def counters():
    """One connection for the life of the process, because `move` has to be quick."""
    return store()


@task(lock_key=["account:{source}", "account:{target}"], ignore_result=True)
def move(self, source, target, name):
    """The smallest transfer. It asks the store whether it is alone with each account."""
    for account in (source, target):
        if counters().incr(f"inside:{name}:{account}") != 1:
            counters().rpush(f"overlaps:{name}", account)
    for account in (source, target):
        counters().decr(f"inside:{name}:{account}")
    counters().hincrby(f"runs:{name}", self.request.id, 1)
