"""What `app.conf` says about the lock server."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

from celery import Celery
from celery.utils.imports import symbol_by_name

from celery_rlock.errors import ConfigurationError
from celery_rlock.server.client import BESIDE_URL, check_client, connect
from celery_rlock.server.cluster import Client
from celery_rlock.server.forks import in_forked_child
from celery_rlock.server.lock_server import LockServer, RedisLockServer
from celery_rlock.server.redis_keys import DEFAULT_PREFIX, check_prefix
from celery_rlock.server.switched_off import SwitchedOff
from celery_rlock.server.url import parse, understands

_mutexes: dict[int, threading.Lock] = {}
_servers: WeakKeyDictionary[Celery, RedisLockServer] = WeakKeyDictionary()
in_forked_child(_servers.clear)  # `rlock_client` is called once in each process


def enabled(app: Celery) -> bool:
    return _switch(app, "rlock_enabled")


def reaper(app: Celery) -> bool:
    return _switch(app, "rlock_reaper")


def _switch(app: Celery, name: str) -> bool:
    value = app.conf.get(name, True)
    if not isinstance(value, bool):
        raise ConfigurationError(f"setting {name} must be True or False, not {value!r}")
    return value


def server(app: Celery, client: Client | None = None) -> LockServer:
    """The app's lock server, or the one that `client` talks to, or none if locking is switched off."""
    return redis_server(app, client) if enabled(app) else SwitchedOff(prefix(app))


def redis_server(app: Celery, client: Client | None = None) -> RedisLockServer:
    """The lock server on Redis, whether locking is switched on or not. An app has one client per process."""
    if client is not None:
        check_client(client)
        return RedisLockServer(client, prefix(app))
    lock_server = _servers.get(app)
    if lock_server is None:
        with _mutex_of_this_process():  # the first threads of a process must not make two clients
            lock_server = _servers.get(app)
            if lock_server is None:
                lock_server = _servers[app] = RedisLockServer(_client(app), prefix(app))
    return lock_server


def forget_server(app: Celery) -> RedisLockServer | None:
    """Have the app open its lock server anew, with its settings of then. Returns the one it had opened."""
    return _servers.pop(app, None)


def in_memory(app: Celery) -> bool:
    """Whether the app keeps its locks in the memory of each process: `rlock_url = "memory://"`."""
    return app.conf.get("rlock_client") is None and str(app.conf.get("rlock_url")).startswith("memory:")


def _mutex_of_this_process() -> threading.Lock:
    """Made when first used: gevent may patch `threading` after this module was imported."""
    return _mutexes.setdefault(os.getpid(), threading.Lock())


def prefix(app: Celery) -> str:
    return check_prefix(app.conf.get("rlock_prefix", DEFAULT_PREFIX))


def _client(app: Celery) -> Client:
    factory = app.conf.get("rlock_client")
    if factory is None:
        return connect(*_lock_url(app))
    if isinstance(factory, str):
        factory = _imported(factory)
    if not callable(factory):
        raise ConfigurationError(
            # Not its repr: that of a client may show a password.
            f"setting rlock_client must be a callable or its dotted name, not a {type(factory).__name__}"
        )
    made = factory()
    check_client(made)
    return cast("Client", made)


def _imported(name: str) -> Any:
    try:
        return symbol_by_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"setting rlock_client: cannot import {name!r}: {error}") from error


def asyncio_url(app: Celery) -> tuple[str, dict[str, Any]]:
    """The lock's URL and what Celery keeps beside it, for a client that runs in an event loop."""
    if app.conf.get("rlock_client") is not None:
        raise ConfigurationError(
            "setting rlock_client makes a blocking client: pass client=…, a redis.asyncio client, to "
            "celery_rlock.asyncio.RLock"
        )
    return _lock_url(app)


def lock_url(app: Celery) -> str:
    """`rlock_url`, else a Redis result backend, else a Redis broker."""
    return _lock_url(app)[0]


def _lock_url(app: Celery) -> tuple[str, dict[str, Any]]:
    """The lock's URL, and what Celery keeps beside it."""
    own = app.conf.get("rlock_url")
    if own is not None:
        if not isinstance(own, str):
            raise ConfigurationError(f"setting rlock_url must be a str, not {type(own).__name__}")
        return own, _passwords(app, own)
    conf = app.conf
    if any(conf.get(name) is not None for name in PASSWORDS):
        raise ConfigurationError(f"setting rlock_url is missing: {', '.join(PASSWORDS)} complete it only")
    login = {"username": conf.redis_username, "password": conf.redis_password}
    for value, transport, more in (
        (
            conf.result_backend,
            conf.result_backend_transport_options,
            {**login, "ssl": conf.redis_backend_use_ssl},
        ),
        (conf.broker_url, conf.broker_transport_options, {"ssl": conf.broker_use_ssl}),
    ):
        for url in _split(value):
            if understands(url):
                return url, _beside_url({**(transport or {}), **more})
    raise ConfigurationError(
        f"no Redis for the locks of app {app.main!r}: set rlock_url, because neither result_backend nor "
        "broker_url is a Redis that the lock can use; a thread of your own sees your app after "
        "app.set_default()"
    )


#: Passwords beside `rlock_url`. Celery masks every setting with PASS in its name where it shows settings.
PASSWORDS = ("rlock_password", "rlock_sentinel_password", "rlock_ssl_password")


def _passwords(app: Celery, url: str) -> dict[str, Any]:
    """The passwords that stand beside `rlock_url`, as `connect` takes them."""
    given = {name: app.conf.get(name) for name in PASSWORDS}
    if not any(given.values()):
        return {}
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"setting {name} must be a str, not {type(value).__name__}")
    for name in _passwords_in(url):
        if given[name]:
            raise ConfigurationError(f"rlock_url has a password, and {name} is set: remove it from rlock_url")
    password, of_sentinels, of_key = given.values()
    return _beside_url(
        {
            "password": password,
            "sentinel_kwargs": {"password": of_sentinels} if of_sentinels else None,
            "ssl": {"ssl_password": of_key} if of_key else None,
        }
    )


def passwords_in_url(app: Celery) -> list[str]:
    """The settings into which the passwords of `rlock_url` should move."""
    return _passwords_in(app.conf.get("rlock_url") or "redis://")


def _passwords_in(url: str) -> list[str]:
    address = parse(url)
    options = (
        (address.options, "password"),
        (address.sentinel_options, "password"),
        (address.options, "ssl_password"),
    )
    return [name for name, (where, key) in zip(PASSWORDS, options, strict=True) if where.get(key)]


def _beside_url(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in BESIDE_URL if found.get(name)}


def _split(value: Any) -> list[str]:
    """Several URLs are several servers, except that all sentinels belong together."""
    urls = value.split(";") if isinstance(value, str) else [str(url) for url in value or ()]
    sentinels = [url for url in urls if url.startswith("sentinel://")]
    return [";".join(sentinels)] if sentinels else urls
