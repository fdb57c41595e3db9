"""redis-py's pools and connections, with the care that a lock needs."""

from __future__ import annotations

import random
import socket
import struct
import time
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import (
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from celery_rlock.server.clock import now

#: A connection that was idle for longer is not trusted: firewalls drop such connections silently.
_LONGEST_IDLE = 30.0

#: Close at once and discard what was not sent. Else a request that was given up could still arrive later.
_DISCARD_UNSENT = struct.pack("ii", 1, 0)

_LONGEST_PAUSE = 0.02


class _CarefulConnection:
    """Discards unsent requests when it closes, and reconnects after a long idle time."""

    _sock: Any
    _last_used = 0.0

    def connect(self, *args: Any, **options: Any) -> None:
        if self._sock is not None and now() - self._last_used > _LONGEST_IDLE:
            self.disconnect()  # type: ignore[attr-defined]
        super().connect(*args, **options)  # type: ignore[misc]
        self._last_used = now()

    def _connect(self) -> Any:
        sock = super()._connect()  # type: ignore[misc]
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD_UNSENT)
        return sock


class TcpConnection(_CarefulConnection, redis.Connection):
    """A TCP connection."""


class TlsConnection(_CarefulConnection, redis.SSLConnection):
    """A TLS connection."""


class UnixConnection(_CarefulConnection, redis.UnixDomainSocketConnection):
    """A connection through a Unix socket."""


class SentinelTcpConnection(_CarefulConnection, SentinelManagedConnection):
    """A TCP connection to the primary that the sentinels name."""


class SentinelTlsConnection(_CarefulConnection, SentinelManagedSSLConnection):
    """A TLS connection to the primary that the sentinels name."""


class _PatientPool:
    """Waits for a free connection while all are in use, as long as for an answer."""

    connection_kwargs: dict[str, Any]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        give_up = now() + (self.connection_kwargs.get("socket_timeout") or 1.0)
        while True:
            try:
                return super().get_connection(*args, **options)  # type: ignore[misc]
            except RedisConnectionError as error:
                if "Too many connections" not in str(error) or now() >= give_up:
                    raise
            time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - jitter, not a secret


class Pool(_PatientPool, redis.ConnectionPool):
    """The connections to one server."""


class SentinelPool(_PatientPool, SentinelConnectionPool):
    """The connections to the primary that the sentinels name."""
