"""What `app.conf` says of the lock server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import redis
from celery.utils.imports import symbol_by_name

from celery_rlock.core.client import connect, understands
from celery_rlock.core.name import DEFAULT_PREFIX, check_prefix
from celery_rlock.core.scripts import Scripts
from celery_rlock.core.switched_off import SwitchedOff
from celery_rlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

_servers: WeakKeyDictionary[Celery, Scripts] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_servers.clear)  # `rlock_client` is called once in each process


def enabled(app: Celery) -> bool:
    return _switch(app, "rlock_enabled")


def reaper(app: Celery) -> bool:
    return _switch(app, "rlock_reaper")


def _switch(app: Celery, name: str) -> bool:
    value = app.conf.get(name, True)
    if not isinstance(value, bool):
        raise ConfigurationError(f"setting {name} must be True or False, not {value!r}")
    return value


def server(app: Celery, client: redis.Redis | None = None) -> Scripts:
    """The app's lock server, one client a process; or the one that `client` talks to."""
    if not enabled(app):
        return SwitchedOff(prefix(app))
    if client is not None:
        return Scripts(client, prefix(app))
    scripts = _servers.get(app)
    if scripts is None:
        scripts = _servers[app] = Scripts(_client(app), prefix(app))
    return scripts


def prefix(app: Celery) -> str:
    return check_prefix(app.conf.get("rlock_prefix", DEFAULT_PREFIX))


def _client(app: Celery) -> redis.Redis:
    factory = app.conf.get("rlock_client")
    if factory is None:
        return connect(lock_url(app))
    factory = symbol_by_name(factory)
    if not callable(factory):
        raise ConfigurationError(
            f"setting rlock_client must be a callable or its dotted name, not {factory!r}"
        )
    return cast("redis.Redis", factory())


def lock_url(app: Celery) -> str:
    """`rlock_url`, else a Redis result backend, else a Redis broker."""
    own = app.conf.get("rlock_url")
    if own is not None:
        if not isinstance(own, str):
            raise ConfigurationError(f"setting rlock_url must be a str, not {type(own).__name__}")
        return own
    for url in _fallbacks(app):
        if understands(url):
            return url
    raise ConfigurationError(
        "no Redis for the locks: set rlock_url, for neither result_backend nor broker_url is one that "
        "the lock can use"
    )


def _fallbacks(app: Celery) -> Iterator[str]:
    for value in (app.conf.result_backend, app.conf.broker_url):
        yield from _split(value)


def _split(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split(";")
    return [str(url) for url in value or ()]
