"""One Redis client a process and URL, that answers or fails soon."""

from __future__ import annotations

import re
from functools import cache, partial
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_rlock.core.quick import QuickRedis
from celery_rlock.errors import ConfigurationError

#: Our scheme for each that a user may write.
_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
    "socket": "unix",
}
_TIMEOUT = 1.0


def understands(url: object) -> bool:
    """Whether `connect` can use this URL's scheme."""
    return isinstance(url, str) and urlsplit(url).scheme in _SCHEMES


@cache
def connect(url: str) -> redis.Redis:
    """The client for `url`: short timeouts, no retries of its own, safe over fork and between threads.

    Timeouts may be set in the URL: `redis://host/0?socket_timeout=3`.
    """
    settings = {
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "celery-rlock",
        "protocol": 2,
    }
    try:
        return QuickRedis(partial(redis.ConnectionPool.from_url, _normalized(url), **settings))
    except (ValueError, redis.RedisError) as error:
        raise ConfigurationError(f"cannot use the lock's URL {hide_password(url)!r}: {error}") from error


def hide_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = f"{parts.username or ''}:***@"
    return urlunsplit(parts._replace(netloc=user + parts.netloc.rpartition("@")[2]))


def _normalized(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(
            f"the lock's URL {hide_password(url)!r} has the unknown scheme {parts.scheme!r}: "
            f"use one of {', '.join(sorted(_SCHEMES))}"
        )
    # Celery writes ssl_cert_reqs=CERT_REQUIRED, redis-py wants `required`.
    address = re.sub(r"(?<=ssl_cert_reqs=)CERT_\w+", lambda match: match[0][5:].lower(), url)
    return _SCHEMES[parts.scheme] + address.removeprefix(parts.scheme)
