"""Why a lock is held: one sentence from what Redis and the workers say."""

from __future__ import annotations

from typing import NamedTuple

from celery_rlock.core.entry import Entry
from celery_rlock.ops.fleet import Fleet
from celery_rlock.ops.rows import who
from celery_rlock.ops.wording import counted, duration


class Verdict(NamedTuple):
    text: str
    is_fine: bool


def verdict(entry: Entry, fleet: Fleet) -> Verdict:
    """Who holds it, whether that one lives, and what will end it."""
    text, is_fine = _holder(entry, fleet)
    waiting = f" {counted(entry.waiters, 'waiter')} behind it." if entry.waiters else ""
    return Verdict(text + waiting, is_fine)


def _holder(entry: Entry, fleet: Fleet) -> Verdict:
    left = duration(entry.lease_left)
    if entry.state == "queued":
        return Verdict(
            f"{who(entry)}, is queued or scheduled and has the key until it has run; nobody starts it if its "
            f"message is gone (purged): then the key is free in {left}.",
            is_fine=True,
        )
    if entry.state == "resting":
        return Verdict(f"{who(entry)} has ended; lock_hold_at_least keeps the key for {left}.", is_fine=True)
    if entry.is_script:
        return Verdict(
            f"a process that is no worker holds it, {entry.owner.worker}; while it lives it renews its "
            f"lease, else the key is free in {left}.",
            is_fine=True,
        )
    return _task(entry, fleet, left)


def _task(entry: Entry, fleet: Fleet, left: str) -> Verdict:
    holds = f"{who(entry)} has held it for {duration(entry.held_for)}"
    if not fleet.asked:
        return Verdict(f"{holds}; its lease ends in {left} unless renewed.", is_fine=True)
    if fleet.error is not None:
        return Verdict(
            f"{holds}; its worker could not be asked; the lease ends in {left} unless renewed.", is_fine=False
        )
    if fleet.run_of(entry) is not None:
        return Verdict(f"{holds}, and it runs there.", is_fine=True)
    if entry.owner.worker not in fleet.answers:
        return Verdict(
            f"{holds}, but that worker does not answer: it is dead, or too busy to; unless it renews its "
            f"lease the key is free in {left}.",
            is_fine=False,
        )
    if not entry.task:
        return Verdict(f"{holds}, with an RLock inside a task.", is_fine=True)
    return Verdict(
        f"{holds}, but that worker does not run it: it ended a moment ago, or the key is free in {left}.",
        is_fine=False,
    )
