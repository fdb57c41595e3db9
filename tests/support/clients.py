"""A Redis client that hides nothing: one try, short timeouts, bytes."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def bare_client(url: str, **options: Any) -> redis.Redis:
    """A new client for `url`: bytes in and out, no retries, 5 s timeouts; `options` go to redis.Redis."""
    defaults = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 5, "socket_connect_timeout": 5}
    return redis.Redis.from_url(url, **{**defaults, **options})
