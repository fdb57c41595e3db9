"""Checks of leases and time limits."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock.doctor.findings import Finding, error, named, warn
from celery_rlock.doctor.setup import Setup
from celery_rlock.options.options import Options

#: A lease is renewed while the task runs, so a longer one only keeps the key longer after a host dies.
_LONG_LEASE = 300
#: The server has a second to answer (socket_timeout), and a lease is renewed every third of it.
_SHORT_LEASE = 3


def check_leases(setup: Setup) -> Iterator[Finding]:
    long = [locked for locked in setup.examined if locked.options.ttl > _LONG_LEASE]
    if long:
        longest = max(locked.options.ttl for locked in long)
        yield warn(
            f"the lock_ttl of {named(locked.name for locked in long)} is up to {longest:g} s: when a host "
            "dies, its keys stay locked that long",
            "lower lock_ttl: the lease is renewed while run() runs, so it need not be as long as the run; 30 "
            "is the default",
        )
    short = [locked for locked in setup.examined if locked.options.ttl < _SHORT_LEASE]
    if short:
        shortest = min(locked.options.ttl for locked in short)
        yield warn(
            f"the lock_ttl of {named(locked.name for locked in short)} is down to {shortest:g} s: one slow "
            "answer of the server, or a short pause of the process, loses the lock",
            f"set lock_ttl to {_SHORT_LEASE} or more",
        )


def check_limits(setup: Setup) -> Iterator[Finding]:
    ended = [locked for locked in setup.examined if _ends_while_waiting(locked.options, setup.limits(locked))]
    if ended:
        yield error(
            f"lock_wait of {named(locked.name for locked in ended)} is not below the time limit, which ends "
            "the task while it still waits",
            "lower lock_wait, or leave it out: a task that is scheduled again does not use up its time limit",
        )
    outlasting = [locked for locked in setup.examined if _may_outlast(locked.options, setup.limits(locked))]
    if outlasting:
        yield warn(
            f"{named(locked.name for locked in outlasting)} may run longer than lock_max_hold, and then "
            "without the lock: the time limit is longer, or there is none",
            'set time_limit to lock_max_hold or less, or set lock_lost="abort"',
        )


def _ends_while_waiting(options: Options, limits: list[float]) -> bool:
    return bool(limits) and options.wait >= min(limits)


def _may_outlast(options: Options, limits: list[float]) -> bool:
    if options.max_hold is None or options.lost != "warn":
        return False
    return not limits or max(limits) > options.max_hold
