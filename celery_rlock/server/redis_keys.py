"""What keys and owners are called in Redis."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from celery_rlock.errors import ConfigurationError

DEFAULT_PREFIX = "rlock:"

# Braces would move the hash tag, `%` is our escape, the rest cannot be read or cannot be encoded.
_UNSAFE = re.compile(r"[{}%\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_BYTES = 200
_HEAD_CHARS = 40


class Name(NamedTuple):
    """A key and the Redis keys it stands for, all under one hash tag and so in one slot of a Cluster."""

    key: str
    lock: str
    token: str
    waiters: str
    woken: str

    @classmethod
    def of(cls, key: str, prefix: str = DEFAULT_PREFIX) -> Name:
        """Different keys never share a name, whatever text they hold."""
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"a lock's key must be a non-empty str, not {key!r}")
        return cls.around(key, f"{prefix}{{{_safe(key)}}}")

    @classmethod
    def around(cls, key: str, lock: str) -> Name:
        """The name whose lock is called so in Redis."""
        return cls(key, lock, f"{lock}:token", f"{lock}:waiters", f"{lock}:woken")

    def done(self, task_id: str, retries: int) -> str:
        """What tells the copies of a message that its task has ended."""
        return f"{self.lock}:done:{task_id}:{retries}"


#: Deliveries that are none: a task that was published but did not start yet, and the rest of one that ended.
QUEUED = "queued"
RESTING = "rest"


class Owner(NamedTuple):
    """Who holds a lock: `worker/delivery:task-id`. The delivery makes each owner another one."""

    worker: str
    delivery: str
    task_id: str

    @property
    def field(self) -> str:
        """What stands for it in the lock's hash."""
        return f"{self.delivery}:{self.task_id}"

    def __str__(self) -> str:
        return f"{self.worker}/{self.field}"


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str) or _UNSAFE.search(prefix):
        raise ConfigurationError(
            f"rlock_prefix must be a str without braces, percent signs or control characters, not {prefix!r}"
        )
    return prefix


def _safe(key: str) -> str:
    escaped = _UNSAFE.sub(_escape, key)
    if len(escaped) * 4 <= _MAX_BYTES or len(escaped.encode()) <= _MAX_BYTES:
        return escaped
    digest = blake2b(escaped.encode(), digest_size=16).hexdigest()
    return f"{escaped[:_HEAD_CHARS]}%~{digest}"  # `%~` never comes out of _escape


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
