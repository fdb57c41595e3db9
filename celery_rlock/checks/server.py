"""What the lock's server says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from celery_rlock.checks.finding import Finding, NotChecked, error, ok, warn
from celery_rlock.checks.primary import Primary, each_primary
from celery_rlock.checks.setup import Setup

_OLDEST = {"redis": (6, 2), "valkey": (8, 0)}
_FULL = 0.9


@each_primary
def look_at_version(primary: Primary, _: Setup) -> Iterator[Finding]:
    kind = "valkey" if "valkey_version" in primary.info else "redis"
    version = str(primary.info.get(f"{kind}_version", "?"))
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
def look_at_eviction(primary: Primary, _: Setup) -> Iterator[Finding]:
    info = primary.info
    policy, limit = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
    if limit and policy != "noeviction":
        yield error(
            f"maxmemory-policy is {policy}: when memory is short Redis drops locks that are held",
            "CONFIG SET maxmemory-policy noeviction and write it into the server's configuration; give the "
            "locks a server of their own (rlock_url) if this one is a cache",
        )
    elif limit and int(info.get("used_memory", 0)) > _FULL * limit:
        yield warn(
            f"{int(info['used_memory']) / limit:.0%} of maxmemory are in use: when it is full no lock can be "
            "taken",
            "raise maxmemory, or find what fills the server",
        )
    else:
        yield ok(f"maxmemory-policy is {policy}, maxmemory {limit or 'unlimited'}")


@each_primary
def look_at_role(primary: Primary, _: Setup) -> Iterator[Finding]:
    role = str(primary.info.get("role", "master"))
    if role == "master":
        yield ok("primary")
        return
    leader = f"{primary.info.get('master_host')}:{primary.info.get('master_port')}"
    yield error(
        f"the server is a replica of {leader}: it takes no locks",
        "point rlock_url at the primary, or use Sentinel, which follows a failover",
    )


@each_primary
def look_at_persistence(primary: Primary, _: Setup) -> Iterator[Finding]:
    """What a restart of the server forgets, while the runs that hold the locks go on."""
    info = primary.info
    if int(info.get("aof_enabled", 0)):
        state = str(info.get("aof_last_write_status", "ok"))
        if state == "ok":
            yield ok(
                "appendonly: a restart of the server loses the last second at most (appendfsync everysec)"
            )
        else:
            yield error(
                f"the server cannot write its appendonly file: {state}", "see its log; is the disk full?"
            )
        return
    emptied = " and empties its replicas" if int(info.get("connected_slaves", 0)) else ""
    yield warn(
        f"there is no appendonly file: a restart of the server forgets the locks that are held{emptied}; "
        "their runs are told at the next renewal, but others may have started",
        "set appendonly yes; or have the server stay down until the longest lease is over",
    )


@each_primary
def look_at_replicas(primary: Primary, setup: Setup) -> Iterator[Finding]:
    """Whether as many are connected as `lock_replicas` demands."""
    wanted = setup.replicas
    if not wanted:
        raise NotChecked("no task sets lock_replicas")
    there = sum(1 for replica in _replicas(primary.info) if replica.get("state") == "online")
    if there < wanted:
        yield error(
            f"lock_replicas is {wanted}, but {there} replicas are connected: no such lock can be taken",
            "start the replicas that are missing, or lower lock_replicas",
        )
    else:
        yield ok(f"lock_replicas is {wanted}, {there} replicas are connected")


def _replicas(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        value for name, value in info.items() if re.fullmatch(r"slave\d+", name) and isinstance(value, dict)
    ]
