"""Leases and time limits, against each other."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock.checks.finding import Finding, error, named, warn
from celery_rlock.checks.setup import Setup

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
    for one in setup.tasks:
        limits, options = setup.limits(one), one.options
        if options.wait and limits and options.wait >= min(limits):
            yield error(
                f"lock_wait of {one.name} is {options.wait:g} s, its time limit {min(limits):g} s: the limit "
                "ends it while it still waits",
                "lower lock_wait, or leave it out: a waiter that is scheduled again takes no time from its "
                "limit",
            )
        if options.max_hold is None or options.lost != "warn":
            continue
        if not limits or max(limits) > options.max_hold:
            limit = f"its time limit is {max(limits):g} s" if limits else "it has no time limit"
            yield warn(
                f"lock_max_hold of {one.name} is {options.max_hold:g} s, but {limit}: it may run on without "
                "its lock",
                f'set time_limit to {options.max_hold:g} or less, or lock_lost="abort"',
            )
