"""Clocks: one that counts suspend, and what this process knows about the server's."""

from __future__ import annotations

import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

import redis
import redis.asyncio

from celery_rlock.server.forks import in_forked_child

#: Seconds that a connection and an answer may take, where the client does not say.
_DEFAULT_TIMEOUT = 1.0

#: A moment long ago. 0 would mean that there is no deadline.
_PASSED = 1

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds on a clock that never goes back and, on Linux, also counts while the machine is suspended."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class ServerClock:
    """Estimates the server's clock from its answers, to tell the server when a request is too late."""

    def __init__(self, client: object) -> None:
        options = _connection_options(client)
        timeouts = (options.get("socket_connect_timeout"), options.get("socket_timeout"))
        self.patience = sum(
            timeout if isinstance(timeout, int | float) and timeout else _DEFAULT_TIMEOUT
            for timeout in timeouts
        )
        self._ahead: float | None = None  # microseconds that the server's clock is ahead of ours, at most

    def learn(self, server_time: int, sent: float) -> None:
        """The server answered with its time to a request that was sent at `sent`."""
        self._ahead = server_time - sent * 1e6

    def deadline(self, sent: float) -> int:
        """The server's time at which a request sent now is given up.

        While no answer has come yet, it is one that has passed: the server refuses the request and tells its
        time, and the caller asks again. Else the first request of a process could arrive at any time later.
        """
        if self._ahead is None:
            return _PASSED
        return round((sent + self.patience) * 1e6 + self._ahead)


def _connection_options(client: object) -> dict[str, Any]:
    is_single = isinstance(client, redis.Redis | redis.asyncio.Redis)
    pool = getattr(client, "connection_pool", None) if is_single else None
    return getattr(pool, "connection_kwargs", None) or {}


def clock_of(client: object) -> ServerClock:
    """The clock of the server behind this client."""
    with _mutex:
        if client not in _clocks:
            _clocks[client] = ServerClock(client)
        return _clocks[client]


def _after_fork() -> None:
    global _mutex  # noqa: PLW0603 - another thread of the parent may have held it
    _mutex = threading.Lock()


_mutex = threading.Lock()
_clocks: WeakKeyDictionary[object, ServerClock] = WeakKeyDictionary()
in_forked_child(_after_fork)
