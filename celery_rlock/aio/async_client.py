"""Makes the `redis.asyncio` client for a lock server's URL: it answers soon, or fails soon."""

from __future__ import annotations

import inspect
import socket
import struct
from collections.abc import Mapping
from typing import Any

from redis._parsers.encoders import Encoder
from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

from celery_rlock.aio.async_sentinel import AsyncSentinelRedis
from celery_rlock.errors import ConfigurationError
from celery_rlock.server.client import complete_address
from celery_rlock.server.clock import now
from celery_rlock.server.memory import async_memory_client
from celery_rlock.server.url import TLS_OPTIONS, ServerAddress, parse

AsyncClient = Redis | RedisCluster

#: As in server/pool.py.
_LONGEST_IDLE = 30.0
_DISCARD_UNSENT = struct.pack("ii", 1, 0)


def async_connect(url: str, beside: Mapping[str, Any] | None = None) -> AsyncClient:
    """A new client for `url`, with short timeouts and no hidden retries, as `server.client.connect` makes it.

    It opens its connections in the loop in which it is first used, and belongs to that loop.
    """
    if url.startswith("memory:"):
        return async_memory_client(parse(url).options["name"])
    address = complete_address(url, beside or {})
    address.options["retry"] = Retry(NoBackoff(), 0)
    if address.kind == "cluster":
        return _cluster(address)
    if address.kind == "sentinel":
        return _sentinel(address)
    options = dict(address.options)
    if address.kind == "unix":
        for name in ("socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"):
            options.pop(name, None)
        return Redis.from_pool(ConnectionPool(AsyncUnixConnection, **options))
    options["host"], options["port"] = address.nodes[0]
    _check_tls(options, SSLConnection)
    connection = AsyncTlsConnection if address.tls else AsyncTcpConnection
    return Redis.from_pool(ConnectionPool(connection, **options))


def _sentinel(address: ServerAddress) -> AsyncSentinelRedis:
    kept = ("socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options")
    options = {name: address.options[name] for name in kept}
    options["retry"] = address.options["retry"]
    _check_tls({**address.options, **address.sentinel_options}, SSLConnection)
    sentinel = Sentinel(address.nodes, sentinel_kwargs={**options, **address.sentinel_options})
    connection = AsyncSentinelTlsConnection if address.tls else AsyncSentinelTcpConnection
    pool = SentinelConnectionPool(
        address.master_name, sentinel, **{**address.options, "connection_class": connection}
    )
    return AsyncSentinelRedis(pool)


def _cluster(address: ServerAddress) -> AsyncCluster:
    _check_tls(address.options, RedisCluster)
    nodes = [ClusterNode(host, port) for host, port in address.nodes]
    known = inspect.signature(RedisCluster.__init__).parameters
    # redis-py before 6 has separate counts for a Cluster's own retries.
    no_retries = {"cluster_error_retry_attempts": 0, "connection_error_retry_attempts": 0}
    if "connection_error_retry_attempts" in known:
        address.options |= no_retries
    # Slots without a server must not make the other slots unavailable. After MOVED, redis-py
    # learns the new node of the slot. With `reinitialize_steps` it would also close connections in use.
    return AsyncCluster(
        startup_nodes=nodes,
        ssl=address.tls,
        require_full_coverage=False,
        reinitialize_steps=0,
        **address.options,
    )


def _check_tls(options: Mapping[str, Any], taker: type) -> None:
    """redis.asyncio takes fewer TLS options than redis-py's blocking clients, and fewer for a Cluster."""
    known = inspect.signature(taker.__init__).parameters  # type: ignore[misc]
    for name in TLS_OPTIONS:
        if name in options and name not in known:
            raise ConfigurationError(
                f"redis.asyncio in this version of redis-py cannot use the TLS option {name}: upgrade "
                "redis-py, use another option, or pass client=… to celery_rlock.asyncio.RLock"
            )


class AsyncCluster(RedisCluster):
    """When none of the known nodes is left, it asks those of the URL again."""

    def __init__(self, *, startup_nodes: list[ClusterNode], **options: Any) -> None:
        super().__init__(startup_nodes=startup_nodes, **options)
        self._in_url = dict(self.nodes_manager.startup_nodes)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().execute_command(*args, **options)
        except RedisClusterException:
            self.nodes_manager.startup_nodes = {**self._in_url, **self.nodes_manager.startup_nodes}
            raise


class _CarefulAsyncConnection:
    """Discards unsent requests when it closes, and reconnects after a long idle time."""

    _writer: Any
    _last_used = 0.0

    async def connect(self) -> None:
        if self._writer is not None and now() - self._last_used > _LONGEST_IDLE:
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
        try:
            await super().connect()  # type: ignore[misc]
        except BaseException:
            # An interrupted greeting leaves a reply unread. redis-py disconnects only after its own errors.
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise
        self._last_used = now()

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[misc]
        sock = self._writer.transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD_UNSENT)


class AsyncTcpConnection(_CarefulAsyncConnection, Connection):
    """A TCP connection."""


class AsyncTlsConnection(_CarefulAsyncConnection, SSLConnection):
    """A TLS connection."""


class AsyncUnixConnection(_CarefulAsyncConnection, UnixDomainSocketConnection):
    """A connection through a Unix socket."""


class AsyncSentinelTcpConnection(_CarefulAsyncConnection, SentinelManagedConnection):
    """A TCP connection to the primary that the sentinels name."""


class AsyncSentinelTlsConnection(_CarefulAsyncConnection, SentinelManagedSSLConnection):
    """A TLS connection to the primary that the sentinels name."""


class _NodePool:
    """The connections of a Cluster's node, as a PubSub wants them."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    async def get_connection(self, *_: object, **__: object) -> Any:
        connection = self._node.acquire_connection()
        try:
            await connection.connect()
        except BaseException:
            _give_back(self._node, connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        _give_back(self._node, connection)

    def get_encoder(self) -> Encoder:
        return Encoder("utf-8", "strict", decode_responses=False)


def _give_back(node: ClusterNode, connection: Any) -> None:
    release = getattr(node, "release", None) or node._free.append  # noqa: SLF001 - redis-py before 6.3
    release(connection)


class ClusterPrimary:
    """One primary of a Cluster, for pub/sub: redis.asyncio's RedisCluster had none before redis-py 8."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def pubsub(self) -> PubSub:
        pool: Any = _NodePool(self._node)
        return PubSub(pool)

    async def publish(self, channel: str, message: str) -> int:
        return int(await self._node.execute_command("PUBLISH", channel, message))


async def primaries_of(client: AsyncClient) -> dict[str, Any]:
    """The servers that take writes, by their address: the one, or the primaries of a Cluster."""
    if not isinstance(client, RedisCluster):
        return {"": client}
    await client.initialize()
    await client.nodes_manager.initialize()
    return {node.name: ClusterPrimary(node) for node in client.get_primaries()}
