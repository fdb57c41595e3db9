"""The servers that hold the locks: a single server, or every primary of a Cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from secrets import token_hex
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from celery_rlock.doctor.findings import CouldNotLook, NotChecked
from celery_rlock.server.cluster import primaries, server_of
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.redis_keys import RedisKeys

#: The most keys to try until each primary of a Cluster has one.
_PROBES = 10_000


class Primary:
    """A server, and a key on it that only the doctor uses."""

    def __init__(self, address: str, client: redis.Redis, probe: RedisKeys) -> None:
        self.address, self.client, self.probe = address, client, probe
        self.in_memory = False  #: whether it is no server at all: `memory://`

    @cached_property
    def info(self) -> dict[str, Any]:
        """The answer to INFO. Raises CouldNotLook if there is none."""
        if self.in_memory:
            raise NotChecked("the locks are in the memory of a process")
        try:
            return dict(self.client.info())
        except NoPermissionError as refusal:
            raise CouldNotLook(
                "the user may not run INFO", "run the doctor as a user with +info, or look at the server"
            ) from refusal
        except ResponseError as unknown:
            raise CouldNotLook(
                "the server has no INFO", "look at the server's settings yourself"
            ) from unknown

    def fact(self, name: str) -> Any:
        """A field of INFO. Raises CouldNotLook if the server leaves it out, as proxies do."""
        if name not in self.info:
            raise CouldNotLook(f"INFO does not tell {name}", "look at the server's settings yourself")
        return self.info[name]

    def clean(self) -> None:
        """Delete everything under the doctor's key."""
        self.client.delete(*self.probe[1:])


def primaries_of(lock_server: RedisLockServer) -> list[Primary]:
    """Every primary, each with a key of its own."""
    missing = {address_of(client) for client in primaries(lock_server.client)}
    found = []
    for probe in islice(_probes(lock_server), _PROBES):
        client = server_of(lock_server.client, probe.lock)
        address = address_of(client)
        if address in missing:
            missing.remove(address)
            found.append(Primary(address, client, probe))
        if not missing:
            break
    return found


def address_of(client: redis.Redis) -> str:
    """`host:port`, the path of a socket, or the name that Sentinel knows the server by."""
    pool: Any = client.connection_pool
    options = pool.connection_kwargs
    if "path" in options:
        return str(options["path"])
    if "host" in options:
        return f"{options['host']}:{options.get('port', 6379)}"
    return str(getattr(pool, "service_name", type(client).__name__))


def _probes(lock_server: RedisLockServer) -> Iterator[RedisKeys]:
    while True:
        yield lock_server.redis_keys(f"doctor:{token_hex(8)}")
