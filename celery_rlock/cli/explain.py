"""redis-py's errors in our own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from redis.exceptions import ResponseError

from celery_rlock.core.cluster import FAILURES
from celery_rlock.core.name import Name
from celery_rlock.errors import ConfigurationError, LockUnavailable

_LONGEST = 300

#: Servers quote it in different ways.
_NO_WAIT = re.compile(r"unknown command .WAIT\b", re.IGNORECASE)


@contextmanager
def explaining(name: Name) -> Iterator[None]:
    """What can never go well is a ConfigurationError; all else is LockUnavailable."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, ResponseError) and _NO_WAIT.search(str(error)):
            raise ConfigurationError(
                "the lock server does not know WAIT, so nobody can say which replicas have a lock: set "
                "lock_replicas to 0"
            ) from error
        if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
            raise ConfigurationError(
                f"the Redis key {name.lock!r} holds something that is not a lock: delete it, or choose "
                "another lock_key or rlock_prefix"
            ) from error
        raise LockUnavailable(name.key, brief(error)) from error


def brief(error: BaseException) -> str:
    """redis-py's errors of a Sentinel describe each client at length."""
    return shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" …")
