"""Checks of the lock server itself: does it answer, and is it set up to keep locks?"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from redis.exceptions import AuthenticationError, NoPermissionError

from celery_rlock import settings
from celery_rlock.doctor.findings import CouldNotLook, Finding, NotChecked, error, ok, warn
from celery_rlock.doctor.primary import Primary
from celery_rlock.doctor.setup import Setup, each_primary
from celery_rlock.errors import ConfigurationError
from celery_rlock.server.failures import brief
from celery_rlock.server.url import hide_password

_OLDEST = {"redis": (6, 2), "valkey": (8, 0)}
_FULL = 0.9

#: The clock is read this often, and the quickest answer counts.
_CLOCK_SAMPLES = 3
_CLOCK_TOLERANCE = 1.0


def check_connection(setup: Setup) -> Iterator[Finding]:
    if not settings.enabled(setup.app):
        raise NotChecked("rlock_enabled is False")
    where, failure = _address(setup), setup.server_error
    if failure is None:
        yield ok(f"{where} answers ({', '.join(primary.address for primary in setup.primaries)})")
    else:
        yield error(f"{where} cannot be used: {brief(failure)}", _repair(failure))


def _address(setup: Setup) -> str:
    if setup.app.conf.get("rlock_client") is not None:
        return "the server that rlock_client connects to"
    try:
        return hide_password(settings.lock_url(setup.app))
    except ConfigurationError:
        return "the lock server"


def _repair(failure: Exception) -> str:
    if isinstance(failure, ConfigurationError):
        return "correct the setting that it names"
    if isinstance(failure, AuthenticationError):
        return "correct the user and password in rlock_url"
    if isinstance(failure, NoPermissionError):
        return "grant the lock's user +client|setname, and +select for a database other than 0"
    return (
        "start the server, open the network path to it, or correct rlock_url; until then lock_unavailable "
        "decides what tasks do"
    )


@each_primary
def check_version(primary: Primary, _: Setup) -> Iterator[Finding]:
    kind = "valkey" if "valkey_version" in primary.info else "redis"
    version = str(primary.fact(f"{kind}_version"))
    oldest = _OLDEST[kind]
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < oldest:
        wanted = ".".join(map(str, oldest))
        yield error(
            f"the server is {kind} {version}", f"upgrade it to {wanted} or newer: the scripts need it"
        )
    else:
        yield ok(f"{kind} {version}")


@each_primary
def check_role(primary: Primary, _: Setup) -> Iterator[Finding]:
    role = str(primary.fact("role"))
    if role == "master":
        yield ok("primary")
        return
    leader = f"{primary.info.get('master_host')}:{primary.info.get('master_port')}"
    yield error(
        f"the server is a replica of {leader}, so no lock can be taken there",
        "point rlock_url at the primary, or use Sentinel, which follows a failover",
    )


class ClockOffset(NamedTuple):
    """By how many seconds the server's clock is ahead of this host's, and how exact that is."""

    ahead: float
    margin: float


@each_primary
def check_clock(primary: Primary, _: Setup) -> Iterator[Finding]:
    """Tokens and waiters' places are made from the server's clock; ages and ETAs are compared with it."""
    try:
        ahead, margin = min(
            (_clock_offset(primary) for _ in range(_CLOCK_SAMPLES)), key=lambda found: found.margin
        )
    except NoPermissionError as refusal:
        raise CouldNotLook("the user may not run TIME", "see the check rights") from refusal
    if abs(ahead) - margin > _CLOCK_TOLERANCE:
        way = "ahead of" if ahead > 0 else "behind"
        yield warn(
            f"the server's clock is {abs(ahead):.1f} s {way} that of this host",
            "synchronize both (chrony, ntpd): ETA, expires and a lock's age are compared between hosts",
        )
    else:
        yield ok(f"the server's clock is within {abs(ahead) + margin:.3f} s of this host's")


def _clock_offset(primary: Primary) -> ClockOffset:
    before, local = time.monotonic(), time.time()
    seconds, micros = primary.client.time()
    took = time.monotonic() - before
    return ClockOffset(seconds + micros / 1e6 - (local + took / 2), took)


@each_primary
def check_eviction(primary: Primary, _: Setup) -> Iterator[Finding]:
    policy, limit = str(primary.fact("maxmemory_policy")), int(primary.fact("maxmemory"))
    used = int(primary.fact("used_memory"))
    if limit and policy != "noeviction":
        yield error(
            f"maxmemory-policy is {policy}: when memory runs out, Redis deletes locks that are held",
            "run CONFIG SET maxmemory-policy noeviction, and write it into the server's configuration; if "
            "this server is a cache, give the locks a server of their own (rlock_url)",
        )
    elif limit and used > _FULL * limit:
        yield warn(
            f"{used / limit:.0%} of maxmemory is in use: when it is full, no lock can be taken",
            "raise maxmemory, or find what fills the server",
        )
    else:
        yield ok(f"maxmemory-policy is {policy}, maxmemory {limit or 'unlimited'}")


@each_primary
def check_persistence(primary: Primary, _: Setup) -> Iterator[Finding]:
    """A restart without persistence forgets the locks of tasks that still run."""
    if int(primary.fact("aof_enabled")):
        state = str(primary.fact("aof_last_write_status"))
        if state == "ok":
            yield ok("appendonly: with appendfsync everysec, a restart of the server loses the last second")
        else:
            yield error(
                f"the server cannot write its appendonly file: {state}", "see its log; is the disk full?"
            )
        return
    emptied = " and empties its replicas" if int(primary.info.get("connected_slaves", 0)) else ""
    yield warn(
        f"there is no appendonly file: a restart of the server forgets the locks that are held{emptied}; "
        "the running tasks notice it at their next renewal, and other tasks may have started by then",
        "set appendonly yes; or keep the server down until the longest lease has ended",
    )


@each_primary
def check_replicas(primary: Primary, setup: Setup) -> Iterator[Finding]:
    """Whether as many replicas are connected as `lock_replicas` demands."""
    wanted = max(locked.options.replicas for locked in setup.examined)
    if not wanted:
        raise NotChecked("no task sets lock_replicas")
    primary.fact("connected_slaves")
    there = sum(1 for replica in _replicas(primary.info) if replica.get("state") == "online")
    if there < wanted:
        yield error(
            f"lock_replicas is {wanted}, but connected replicas: {there}; no task that sets it can take its "
            "lock",
            "start the missing replicas, or lower lock_replicas",
        )
    else:
        yield ok(f"lock_replicas is {wanted}, connected replicas: {there}")


def _replicas(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        value for name, value in info.items() if re.fullmatch(r"slave\d+", name) and isinstance(value, dict)
    ]
