"""Waiters that are revoked, or expire, while they wait."""

from __future__ import annotations

import time

import pytest
from celery import states

from tests.support.processes import wait_until
from tests.waking.fleet import SOON

#: Were the turn not passed on, each of them would cost the second that a woken waiter may take.
MANY = 30


@pytest.fixture
def revoke(app, fleet):
    """Every worker knows of it afterwards."""
    names = [worker.nodename for worker in fleet]

    def revoke(sent):
        ids = [task.id for task in sent]
        options = {"destination": names, "reply": True, "timeout": 5, "limit": len(names)}
        wait_until(
            lambda: len(app.control.revoke(ids, **options)) == len(names),
            timeout=SOON,
            what="every worker to know",
        )

    return revoke


def await_revoked(sent):
    for task in sent:
        wait_until(lambda task=task: task.state == states.REVOKED, timeout=SOON, what="state REVOKED")


def test_a_revoked_waiter_never_runs_and_passes_its_turn_on(fleet, send, revoke, name, hold, waiters, starts):
    """Semantics 12: at once, however many are revoked."""
    with hold(name):
        sent = [send("work", name) for _ in range(MANY)]
        waiters.await_count(name, MANY)
        last = send("work", name)
        waiters.await_count(name, MANY + 1)
        revoke(sent)
    assert last.get(timeout=SOON) == last.id
    await_revoked(sent)
    assert starts(name) == [last.id]
    assert not waiters(name)


def test_an_expired_waiter_never_runs_and_passes_its_turn_on(fleet, send, name, hold, waiters, starts):
    with hold(name):
        expires = time.time() + 3
        sent = [send("work", name, expires=3) for _ in range(MANY)]
        last = send("work", name)
        waiters.await_count(name, MANY + 1)
        time.sleep(max(0, expires + 0.5 - time.time()))
    assert last.get(timeout=SOON) == last.id
    await_revoked(sent)
    assert starts(name) == [last.id]
    assert not waiters(name)
