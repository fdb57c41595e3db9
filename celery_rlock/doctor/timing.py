"""Leases and time limits, against each other."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock.checks.finding import Finding, error, named, warn
from celery_rlock.checks.setup import Setup
from celery_rlock.options import Options

#: A lease is renewed, so a longer one only keeps a key longer from those who come after a dead host.
_LONG_LEASE = 300
#: The server has a second to answer (socket_timeout), and a lease is renewed every third of it.
_SHORT_LEASE = 3


def look_at_leases(setup: Setup) -> Iterator[Finding]:
    long = [one for one in setup.tasks if one.options.ttl > _LONG_LEASE]
    if long:
        longest = max(one.options.ttl for one in long)
        yield warn(
            f"the lock_ttl of {named(one.name for one in long)} is up to {longest:g} s: so long a key stays "
            "taken when its host dies",
            "lower lock_ttl: the lease is renewed while run() runs, so it need not be as long as the run; 30 "
            "is the default",
        )
    short = [one for one in setup.tasks if one.options.ttl < _SHORT_LEASE]
    if short:
        shortest = min(one.options.ttl for one in short)
        yield warn(
            f"the lock_ttl of {named(one.name for one in short)} is down to {shortest:g} s: one slow answer, "
            "or a process that stands still for a moment, and the lock is lost",
            f"set lock_ttl to {_SHORT_LEASE} or more",
        )


def look_at_limits(setup: Setup) -> Iterator[Finding]:
    impatient = [one for one in setup.tasks if _ends_while_waiting(one.options, setup.limits(one))]
    if impatient:
        yield error(
            f"lock_wait of {named(one.name for one in impatient)} is not below their time limit, which ends "
            "them while they still wait",
            "lower lock_wait, or leave it out: a waiter that is scheduled again takes no time from its limit",
        )
    outlasting = [one for one in setup.tasks if _may_outlast(one.options, setup.limits(one))]
    if outlasting:
        yield warn(
            f"{named(one.name for one in outlasting)} may run longer than lock_max_hold, and then without "
            "their lock: their time limit is longer, or they have none",
            'set time_limit to lock_max_hold or less, or lock_lost="abort"',
        )


def _ends_while_waiting(options: Options, limits: list[float]) -> bool:
    return bool(limits) and options.wait >= min(limits)


def _may_outlast(options: Options, limits: list[float]) -> bool:
    if options.max_hold is None or options.lost != "warn":
        return False
    return not limits or max(limits) > options.max_hold
