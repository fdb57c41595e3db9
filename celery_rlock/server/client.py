"""Makes the redis-py client for a lock server's URL: it answers soon, or fails soon."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import redis
import redis.asyncio
import redis.cluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_rlock.errors import ConfigurationError
from celery_rlock.server.cluster import Client, LazyCluster
from celery_rlock.server.memory import memory_client
from celery_rlock.server.pool import (
    Pool,
    SentinelPool,
    SentinelTcpConnection,
    SentinelTlsConnection,
    TcpConnection,
    TlsConnection,
    UnixConnection,
)
from celery_rlock.server.sentinel import SentinelRedis
from celery_rlock.server.standalone import StandaloneRedis
from celery_rlock.server.url import TLS_OPTIONS, ServerAddress, hide_password, parse, tls_options

_TIMEOUT = 1.0
_MAX_CONNECTIONS = 100

#: The kernel notices a dead peer after about a minute: 30 s idle, then three probes.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}

#: What Celery's settings may say beside a URL. What the URL itself says takes precedence.
BESIDE_URL = ("master_name", "sentinel_kwargs", "username", "password", "ssl")

#: redis-py before 6 has a separate count for a Cluster's own retries.
_NO_RETRIES: dict[str, Any] = {"cluster_error_retry_attempts": 0} if redis.VERSION < (6,) else {}


def connect(url: str, beside: Mapping[str, Any] | None = None) -> Client:
    """The client for `url`: short timeouts, no hidden retries, safe between threads and over a fork.

    The URL may carry options, as in `redis://host/0?socket_timeout=3`. `beside` has what Celery keeps outside
    of the URL (BESIDE_URL; `ssl` is a dict). Without it, all callers share one client for each URL.
    """
    if url.startswith("memory:"):
        return memory_client(parse(url).options["name"])
    return _connect(url, beside) if beside else _shared(url)


def check_client(client: object, *, of_asyncio: bool = False) -> None:
    """Raise ConfigurationError for a URL in the place of a client, and for a client of the other kind."""
    ours, others = (redis.asyncio, redis) if of_asyncio else (redis, redis.asyncio)
    is_other = isinstance(client, others.Redis | others.RedisCluster)
    if is_other or isinstance(client, str | bytes | None):
        raise ConfigurationError(
            f"client must be a {ours.__name__}.Redis or RedisCluster, not a {type(client).__module__}."
            f"{type(client).__name__}; a URL goes into the setting rlock_url"
        )


@cache
def _shared(url: str) -> Client:
    return _connect(url, {})


def complete_address(url: str, beside: Mapping[str, Any]) -> ServerAddress:
    """Where the server is, with all options that a client needs, and no password that could be printed."""
    address = _complete(parse(url), beside)
    if address.kind == "sentinel" and not address.master_name:
        raise ConfigurationError(
            f"the lock's URL {hide_password(url)!r} does not name the master: add ?master_name=…, or set "
            "master_name in Celery's transport options if the URL is the backend's or the broker's"
        )
    return address


def _connect(url: str, beside: Mapping[str, Any]) -> Client:
    address = complete_address(url, beside)
    if address.kind == "cluster":
        return cast("RedisCluster", LazyCluster(lambda: _cluster(address)))
    if address.kind == "sentinel":
        return SentinelRedis(lambda: _sentinel_pool(address))
    return StandaloneRedis(lambda: _pool(address))


def _complete(address: ServerAddress, beside: Mapping[str, Any]) -> ServerAddress:
    """Add what stands beside the URL, TLS options, timeouts and the login."""
    address.master_name = address.master_name or beside.get("master_name") or ""
    address.sentinel_options = {**(beside.get("sentinel_kwargs") or {}), **address.sentinel_options}
    login = {name: beside[name] for name in ("username", "password") if beside.get(name)}
    if "password" not in address.options:
        address.options |= login
    in_url = {name: address.options.pop(name) for name in list(address.options) if name in TLS_OPTIONS}
    beside_ssl = beside.get("ssl")
    tls = {**(beside_ssl if isinstance(beside_ssl, Mapping) else {}), **in_url}
    address.sentinel_options = _sentinel_tls(address.sentinel_options, tls, address.tls or bool(in_url))
    address.tls = address.tls or bool(beside_ssl or in_url)
    if address.tls:
        address.options |= tls_options(tls)
    address.options = {**_defaults(), **_hidden(address.options)}
    address.sentinel_options = _hidden(address.sentinel_options)
    return address


def _sentinel_tls(options: Mapping[str, Any], tls: Mapping[str, Any], default: bool) -> dict[str, Any]:
    """The options for the sentinels, with their TLS options complete.

    A URL that asks for TLS means the sentinels too, because they get a password as well, and because they
    say where the primary is. `sentinel_ssl=false` says otherwise. TLS in Celery's settings means the primary
    only, as for Celery itself, unless `sentinel_kwargs` has `ssl`.
    """
    rest = {name: value for name, value in options.items() if name not in TLS_OPTIONS and name != "ssl"}
    if not options.get("ssl", default):
        return rest
    own = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    return {**rest, "ssl": True, **tls_options({**tls, **own})}


def _defaults() -> dict[str, Any]:
    return {
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
        "max_connections": _MAX_CONNECTIONS,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "celery-rlock",
        "protocol": 2,
    }


def _hidden(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options, with no password among them that could be printed.

    redis-py 6 and 7 show all options in errors and reprs. They take the login from a credential provider, and
    Python's ssl takes the password of a key from a function.
    """
    rest = dict(options)
    login = [rest.pop(name, None) for name in ("username", "password")]
    if any(login):
        rest["credential_provider"] = UsernamePasswordCredentialProvider(*login)
    if rest.get("ssl_password"):
        rest["ssl_password"] = _KeyPassword(rest["ssl_password"])
    return rest


class _KeyPassword:
    """Returns the password of a TLS key when it is called, and shows it nowhere else."""

    def __init__(self, password: str) -> None:
        self._password = password

    def __call__(self) -> str:
        return self._password

    def __repr__(self) -> str:
        return "***"


def _pool(address: ServerAddress) -> Pool:
    options = dict(address.options)
    if address.kind == "unix":
        for name in ("socket_connect_timeout", "socket_keepalive", "socket_keepalive_options"):
            options.pop(name, None)
        return Pool(connection_class=UnixConnection, **options)
    options["host"], options["port"] = address.nodes[0]
    return Pool(connection_class=TlsConnection if address.tls else TcpConnection, **options)


def _sentinel_pool(address: ServerAddress) -> SentinelPool:
    kept = (
        "socket_timeout",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_keepalive_options",
        "retry",
    )
    patience = {name: address.options[name] for name in kept}
    sentinel = Sentinel(address.nodes, sentinel_kwargs={**patience, **address.sentinel_options})
    connection = SentinelTlsConnection if address.tls else SentinelTcpConnection
    options = {**address.options, "connection_class": connection}
    return SentinelPool(address.master_name, sentinel, **options)  # type: ignore[no-untyped-call]


def _cluster(address: ServerAddress) -> RedisCluster:
    _let_cluster_check_host_names()
    nodes = [ClusterNode(host, port) for host, port in address.nodes]
    # Slots without a server must not make the other slots unavailable.
    return RedisCluster(
        startup_nodes=nodes, ssl=address.tls, require_full_coverage=False, **_NO_RETRIES, **address.options
    )


def _let_cluster_check_host_names() -> None:
    """Make a RedisCluster pass all TLS options on to its connections.

    It passes on what this tuple names, and silently drops the rest: in redis-py 5 the check of host names,
    and before 8 the folder of certificate authorities.
    """
    dropped = [name for name in TLS_OPTIONS if name not in redis.cluster.REDIS_ALLOWED_KEYS]
    if dropped:
        allowed = (*redis.cluster.REDIS_ALLOWED_KEYS, *dropped)
        redis.cluster.REDIS_ALLOWED_KEYS = allowed  # type: ignore[assignment]  # a tuple of another length
