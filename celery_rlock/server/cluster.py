"""The servers behind a client: one, or the primaries of a Cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

import redis
from redis.cluster import RedisCluster
from redis.exceptions import ClusterDownError, ClusterError, RedisClusterException, RedisError

Client = redis.Redis | RedisCluster

#: All that a client may raise: redis-py's errors of a Cluster as a whole are no RedisErrors.
FAILURES = (RedisError, RedisClusterException)

#: How long a slot may take to move, and the pauses in which to ask.
_TIME_TO_MOVE, _PAUSE = 2.0, 0.05


class LazyCluster:
    """Stands for a RedisCluster, which would ask for the layout as soon as it exists, until it is used.

    So a Cluster that is down is an error of a command, as it is for a single server; and a forked child,
    which must share neither sockets nor locks with its parent, gets a client of its own.
    """

    def __init__(self, connect: Callable[[], RedisCluster]) -> None:
        self._connect = connect
        self.start_anew()
        _clients.add(self)

    def start_anew(self) -> None:
        self._mutex = threading.Lock()
        self._cluster: RedisCluster | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As RedisCluster's, which soon gives up on a slot that is on its way to another node, and which
        knows the nodes it saw last: when all are gone, those of the URL are asked.
        """
        give_up = monotonic() + _TIME_TO_MOVE
        while True:
            try:
                return self._current().execute_command(*args, **options)
            except RedisClusterException:
                self.start_anew()
                raise
            except ClusterError as error:
                if isinstance(error, ClusterDownError) or monotonic() >= give_up:
                    raise
                threading.Event().wait(_PAUSE)

    @property  # type: ignore[misc]  # it is never set
    def __class__(self) -> type:
        """For `isinstance`."""
        return RedisCluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def _current(self) -> RedisCluster:
        with self._mutex:
            if self._cluster is None:
                self._cluster = self._connect()
            return self._cluster


def primaries(client: Client) -> list[redis.Redis]:
    """A client for each server that takes writes: the one, or the primaries of a Cluster."""
    if not isinstance(client, RedisCluster):
        return [client]
    return [client.get_redis_connection(node) for node in client.get_primaries()]


def address(server: redis.Redis) -> str:
    """What tells it from the other primaries."""
    options = server.connection_pool.connection_kwargs
    return f"{options.get('host')}:{options.get('port')}"


def refresh(client: Client) -> None:
    """Ask a Cluster for its layout again."""
    if isinstance(client, RedisCluster):
        with suppress(*FAILURES):
            client.nodes_manager.initialize()


def server_of(client: Client, key: str) -> redis.Redis:
    """The server that has the key, as far as is known: it may answer that the key has moved."""
    if not isinstance(client, RedisCluster):
        return client
    return client.get_redis_connection(client.get_node_from_key(key))


def by_server(client: Client, keys: Iterable[str]) -> list[tuple[redis.Redis, list[int]]]:
    """The servers that have these keys, each with the places of its own among them."""
    groups: dict[int, tuple[redis.Redis, list[int]]] = {}
    for place, key in enumerate(keys):
        server = server_of(client, key)
        groups.setdefault(id(server), (server, []))[1].append(place)
    return list(groups.values())


def _after_fork() -> None:
    for client in list(_clients):
        client.start_anew()


_clients: WeakSet[LazyCluster] = WeakSet()
os.register_at_fork(after_in_child=_after_fork)
