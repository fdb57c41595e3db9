"""Waiters that are revoked, or expire, while they wait."""

from __future__ import annotations

import time

from celery import states

from tests.worker.awaiting import SOON, await_state, revoke

#: If the turn were not passed on, each of them would cost the second that a woken waiter has.
MANY = 30
#: Long enough for all of them to find the lock busy, also on a loaded machine.
EXPIRES = 4


def await_revoked(sent):
    for task in sent:
        await_state(task, states.REVOKED)


def test_a_revoked_waiter_never_runs_and_passes_its_turn_on(
    fleet, send, publisher, name, hold, waiters, starts
):
    """Semantics 12: at once, however many are revoked."""
    with hold(name):
        sent = [send("work", name) for _ in range(MANY)]
        waiters.await_count(name, MANY)
        last = send("work", name)
        waiters.await_count(name, MANY + 1)
        revoke(publisher, fleet, *sent)
    assert last.get(timeout=SOON) == last.id
    await_revoked(sent)
    assert starts(name) == [last.id]
    assert not waiters(name)


def test_an_expired_waiter_never_runs_and_passes_its_turn_on(fleet, send, name, hold, waiters, starts):
    """Semantics 12: at once, however many have expired."""
    with hold(name):
        sent = [send("work", name, expires=EXPIRES) for _ in range(MANY)]
        expires = time.time() + EXPIRES  # all of them have expired then
        last = send("work", name)
        waiters.await_count(name, MANY + 1)
        time.sleep(max(0, expires + 0.2 - time.time()))
    assert last.get(timeout=SOON) == last.id
    await_revoked(sent)
    assert starts(name) == [last.id]
    assert not waiters(name)
