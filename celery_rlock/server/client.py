"""One client a process and URL, that answers or fails soon."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from celery_rlock.core import tls
from celery_rlock.core.cluster import Client, LazyCluster
from celery_rlock.core.quick import QuickRedis
from celery_rlock.core.sentinel import SentinelRedis
from celery_rlock.core.url import Target, hide_password, parse
from celery_rlock.errors import ConfigurationError

_TIMEOUT = 1.0

#: What Celery's settings may say apart from a URL; what the URL says goes first.
APART = ("master_name", "sentinel_kwargs", "username", "password", "ssl")

#: redis-py before 6 counts a Cluster's own retries apart.
_NO_RETRIES: dict[str, Any] = {"cluster_error_retry_attempts": 0} if redis.VERSION < (6,) else {}


def connect(url: str, more: Mapping[str, Any] | None = None) -> Client:
    """The client for `url`: short timeouts, no retries of its own, safe over fork and between threads.

    Options may be set in the URL: `redis://host/0?socket_timeout=3`. `more` has what Celery has apart
    from it: APART, `ssl` being a dict. Where nothing is apart a URL has one client.
    """
    return _connect(url, more) if more else _shared(url)


@cache
def _shared(url: str) -> Client:
    return _connect(url, {})


def _connect(url: str, more: Mapping[str, Any]) -> Client:
    target = parse(url)
    target.master_name = target.master_name or more.get("master_name") or ""
    target.sentinel_options = {**(more.get("sentinel_kwargs") or {}), **target.sentinel_options}
    login = {name: more[name] for name in ("username", "password") if more.get(name)}
    if "password" not in target.options:
        target.options |= login
    in_url = {name: target.options.pop(name) for name in list(target.options) if name in tls.OPTIONS}
    apart = more.get("ssl")
    target.tls = target.tls or bool(apart or in_url)
    if target.tls:
        target.options |= tls.options({**(apart if isinstance(apart, Mapping) else {}), **in_url})
    target.options = {**_careful(), **_discreet(target.options)}
    target.sentinel_options = _discreet(target.sentinel_options)
    if target.kind == "cluster":
        return cast("RedisCluster", LazyCluster(partial(_cluster, target)))
    if target.kind == "sentinel" and not target.master_name:
        raise ConfigurationError(
            f"the lock's URL {hide_password(url)!r} does not name the master: add ?master_name=…, or set "
            "master_name in Celery's transport options if the URL is the backend's or the broker's"
        )
    if target.kind == "sentinel":
        return SentinelRedis(partial(_sentinel_pool, target))
    return QuickRedis(partial(_pool, target))


def _careful() -> dict[str, Any]:
    return {
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "celery-rlock",
        "protocol": 2,
    }


def _discreet(options: Mapping[str, Any]) -> dict[str, Any]:
    """The login apart: redis-py 6 and 7 show all other options in errors and where a client is printed."""
    rest = dict(options)
    login = [rest.pop(name, None) for name in ("username", "password")]
    return {**rest, "credential_provider": UsernamePasswordCredentialProvider(*login)} if any(login) else rest


def _pool(target: Target) -> redis.ConnectionPool:
    options = dict(target.options)
    if target.kind == "unix":
        options["connection_class"] = redis.UnixDomainSocketConnection
        options.pop("socket_connect_timeout")
        return redis.ConnectionPool(**options)
    options["host"], options["port"] = target.nodes[0]
    options["connection_class"] = redis.SSLConnection if target.tls else redis.Connection
    return redis.ConnectionPool(**options)


def _sentinel_pool(target: Target) -> redis.ConnectionPool:
    asked = {name: target.options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
    sentinel = Sentinel(target.nodes, sentinel_kwargs={**asked, **target.sentinel_options})
    return SentinelConnectionPool(target.master_name, sentinel, ssl=target.tls, **target.options)


def _cluster(target: Target) -> RedisCluster:
    nodes = [ClusterNode(host, port) for host, port in target.nodes]
    # A part of the slots without a server is no reason to refuse those of the others.
    return RedisCluster(
        startup_nodes=nodes, ssl=target.tls, require_full_coverage=False, **_NO_RETRIES, **target.options
    )
