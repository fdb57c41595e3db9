"""redis-py's errors, translated into ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from redis.exceptions import RedisClusterException, RedisError, ResponseError

from celery_rlock.errors import ConfigurationError, LockUnavailable
from celery_rlock.log import printable
from celery_rlock.server.redis_keys import RedisKeys

#: Everything that a client may raise. redis-py's errors about a whole Cluster are not RedisErrors.
FAILURES = (RedisError, RedisClusterException)

_LONGEST = 300

#: redis-py's errors about Sentinel describe every client with all its options, before they give the reason.
_CLIENT = re.compile(
    r"<redis\.(?:asyncio\.)?client\.Redis\(.*?\bhost=([^,()]+).*?\bport=(\d+).*?\)>\)>\)>", re.DOTALL
)

#: Servers quote the command in different ways.
_NO_WAIT = re.compile(r"unknown command .WAIT\b", re.IGNORECASE)


@contextmanager
def translated(redis_keys: RedisKeys) -> Iterator[None]:
    """Raise our errors instead of redis-py's."""
    try:
        yield
    except FAILURES as error:
        raise translation(error, redis_keys) from error


def translation(error: Exception, redis_keys: RedisKeys) -> ConfigurationError | LockUnavailable:
    """ConfigurationError for what can never work, and LockUnavailable for everything else."""
    if isinstance(error, ResponseError) and _NO_WAIT.search(str(error)):
        return ConfigurationError(
            "the lock server does not know WAIT, so it cannot tell which replicas have a lock: set "
            "lock_replicas to 0"
        )
    if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
        return not_a_lock(redis_keys.lock)
    return LockUnavailable(redis_keys.key, brief(error))


def not_a_lock(name: str) -> ConfigurationError:
    """The error about a Redis key in a lock's place that another program uses."""
    return ConfigurationError(
        f"the Redis key {name!r} holds something that is not a lock: delete it, or choose another lock_key "
        "or rlock_prefix"
    )


def brief(error: BaseException) -> str:
    """The error on one short line, escaped."""
    text = _CLIENT.sub(r"\1:\2", f"{type(error).__name__}: {error}")
    return printable(shorten(text, _LONGEST, placeholder=" …"))
