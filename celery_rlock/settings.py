"""What `app.conf` says of the lock server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from celery.utils.imports import symbol_by_name

from celery_rlock.core.client import APART, connect
from celery_rlock.core.cluster import Client
from celery_rlock.core.name import DEFAULT_PREFIX, check_prefix
from celery_rlock.core.scripts import Scripts
from celery_rlock.core.switched_off import SwitchedOff
from celery_rlock.core.url import understands
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


def server(app: Celery, client: Client | None = None) -> Scripts:
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


def _client(app: Celery) -> Client:
    factory = app.conf.get("rlock_client")
    if factory is None:
        return connect(*_lock_url(app))
    factory = symbol_by_name(factory)
    if not callable(factory):
        raise ConfigurationError(
            f"setting rlock_client must be a callable or its dotted name, not {factory!r}"
        )
    return cast("Client", factory())


def lock_url(app: Celery) -> str:
    """`rlock_url`, else a Redis result backend, else a Redis broker."""
    return _lock_url(app)[0]


def _lock_url(app: Celery) -> tuple[str, dict[str, Any]]:
    """And what Celery has apart from its URL."""
    own = app.conf.get("rlock_url")
    if own is not None:
        if not isinstance(own, str):
            raise ConfigurationError(f"setting rlock_url must be a str, not {type(own).__name__}")
        return own, {}
    conf = app.conf
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
                return url, _apart({**(transport or {}), **more})
    raise ConfigurationError(
        f"no Redis for the locks of app {app.main!r}: set rlock_url, for neither its result_backend nor its "
        "broker_url is one that the lock can use; a thread of your own sees your app after app.set_default()"
    )


def _apart(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in APART if found.get(name)}


def _split(value: Any) -> list[str]:
    """Several URLs are several servers, except that all sentinels belong together."""
    urls = value.split(";") if isinstance(value, str) else [str(url) for url in value or ()]
    sentinels = [url for url in urls if url.startswith("sentinel://")]
    return [";".join(sentinels)] if sentinels else urls
