"""Locks in the memory of this process: `memory://`, for unit tests and eager mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import redis
import redis.asyncio

from celery_rlock.errors import ConfigurationError
from celery_rlock.server.forks import in_forked_child

_TIMEOUT = 1.0


@cache
def memory_client(name: str) -> redis.Redis:
    """The client of the lock server of this name in this process. A forked child has servers of its own."""
    return _fakeredis().FakeRedis(**_options(name))  # type: ignore[no-any-return]


def async_memory_client(name: str) -> redis.asyncio.Redis:
    """A new client of the same lock server, for one event loop."""
    return _fakeredis().FakeAsyncRedis(**_options(name))  # type: ignore[no-any-return]


def _options(name: str) -> dict[str, Any]:
    timeouts = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
    return {"server": _memory_server(name), "host": name or "memory", **timeouts}


@cache
def _memory_server(_name: str) -> Any:
    return _fakeredis().FakeServer()


def _fakeredis() -> Any:
    try:
        import fakeredis  # noqa: PLC0415 - an extra, and only unit tests need it
        import lupa  # noqa: F401, PLC0415 - fakeredis runs Lua scripts with it
    except ImportError as missing:
        raise ConfigurationError(
            "rlock_url memory:// needs fakeredis with Lua, which is not installed: "
            'pip install "celery-rlock[testing]"'
        ) from missing
    return fakeredis


in_forked_child(memory_client.cache_clear)
in_forked_child(_memory_server.cache_clear)
