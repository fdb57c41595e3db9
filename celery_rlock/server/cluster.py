"""The servers behind a client: one, or the primaries of a Cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

import redis
from redis.cluster import RedisCluster
from redis.exceptions import ClusterDownError, ClusterError, MovedError, RedisClusterException
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_rlock.server.failures import FAILURES
from celery_rlock.server.forks import in_forked_child
from celery_rlock.server.standalone import careful

Client = redis.Redis | RedisCluster

#: Seconds that a slot may take to move to another node, and the pause between two tries meanwhile.
_TIME_TO_MOVE, _PAUSE = 2.0, 0.05

#: An answer that took longer, in seconds, may come from a primary that slept through a failover.
SLOW = 0.05

#: So many other nodes are tried, until one of them says which node is the primary.
MOST_WITNESSES = 3
TIME_TO_AGREE = 1.0


class LazyCluster:
    """A RedisCluster that connects when it is first used.

    redis-py's RedisCluster asks the nodes for their slots as soon as it is created. Connecting later makes a
    Cluster that is down an error of a command, as it is for a single server. A forked child connects anew,
    because it must not use its parent's sockets and mutexes.
    """

    def __init__(self, connect: Callable[[], RedisCluster]) -> None:
        self._connect = connect
        self.start_anew()
        _clients.add(self)

    def start_anew(self) -> None:
        self._mutex = threading.Lock()
        self._cluster: RedisCluster | None = None

    @property
    def is_unconnected(self) -> bool:
        """Whether the next command connects first."""
        return self._cluster is None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run the command, with more patience than RedisCluster has.

        Wait while a slot moves to another node. When none of the known nodes is left, connect to those of
        the URL again.
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
        """Makes `isinstance(client, RedisCluster)` true."""
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
    """host:port, unique among the primaries of a Cluster."""
    options = server.connection_pool.connection_kwargs
    return f"{options.get('host')}:{options.get('port')}"


def refresh(client: Client) -> None:
    """Ask a Cluster again which node has which slots."""
    if isinstance(client, RedisCluster):
        with suppress(*FAILURES), careful(client):
            client.nodes_manager.initialize()


def server_of(client: Client, key: str) -> redis.Redis:
    """The server that has the key, as far as the client knows. It may answer that the key has moved."""
    if not isinstance(client, RedisCluster):
        return client
    return client.get_redis_connection(client.get_node_from_key(key))


def node_to_answer(client: Client, key: str) -> Any:
    """The node of a Cluster to which a request for the key will go; None without a Cluster, or if unknown.

    It must be asked before the request is sent: other threads may change the layout meanwhile.
    """
    if not isinstance(client, RedisCluster) or getattr(client, "is_unconnected", False):
        return None
    with suppress(*FAILURES):
        return client.get_node_from_key(key)
    return None


def node_of(client: Client, server: redis.Redis) -> Any:
    """The node of a Cluster that this client of one server belongs to; None without a Cluster."""
    nodes = client.get_nodes() if isinstance(client, RedisCluster) else ()
    return next((node for node in nodes if node.redis_connection is server), None)


def refuse_old_primary(client: Client, answered: Any, key: str, sent: float) -> None:
    """Raise RedisConnectionError if the request that was sent at `sent` must be sent again.

    A primary of a Cluster that was frozen does not know at first that it has a successor, and still answers
    what it received meanwhile. So after a slow answer another node is asked. If it names another primary than
    the node that has answered, this waits until that node knows it too.
    """
    if answered is None or monotonic() - sent <= SLOW or not isinstance(client, RedisCluster):
        return
    give_up = monotonic() + TIME_TO_AGREE
    while True:
        primary = _primary_by_another(answered, client, key)
        if primary in {None, (answered.host, answered.port)}:
            return
        if _primary_as_seen_by(answered, client, key) == primary or monotonic() >= give_up:
            refresh(client)
            raise RedisConnectionError("another node has become the primary, so this answer does not count")
        threading.Event().wait(_PAUSE)


def _primary_by_another(answered: Any, client: RedisCluster, key: str) -> tuple[str, int] | None:
    others = [node for node in client.get_primaries() if node.name != answered.name]
    seen = (_primary_as_seen_by(witness, client, key) for witness in others[:MOST_WITNESSES])
    return next((primary for primary in seen if primary is not None), None)


def _primary_as_seen_by(witness: Any, client: RedisCluster, key: str) -> tuple[str, int] | None:
    """The address of the node that has the key; None if the witness does not say."""
    try:
        client.get_redis_connection(witness).execute_command("EXISTS", key)
    except MovedError as moved:
        host = moved.host or client.get_node_from_key(key).host  # a node may know the port only
        return client.nodes_manager.remap_host_port(host, moved.port)
    except FAILURES:
        return None
    return witness.host, witness.port  # the key is here


def by_server(client: Client, keys: Sequence[str]) -> tuple[list[tuple[redis.Redis, list[int]]], list[Any]]:
    """The servers with the indexes of their keys, and for each key an error or None."""
    groups: dict[int, tuple[redis.Redis, list[int]]] = {}
    errors: list[Any] = [None] * len(keys)
    for place, key in enumerate(keys):
        try:
            server = server_of(client, key)
        except FAILURES as error:  # no node serves this slot: that must not stop the others
            errors[place] = error
        else:
            groups.setdefault(id(server), (server, []))[1].append(place)
    return list(groups.values()), errors


def _after_fork() -> None:
    for client in list(_clients):
        client.start_anew()


_clients: WeakSet[LazyCluster] = WeakSet()
in_forked_child(_after_fork)
