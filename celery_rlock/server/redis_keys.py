"""The Redis keys of a lock."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from celery_rlock.errors import ConfigurationError

DEFAULT_PREFIX = "rlock:"

#: Marks the Redis name of a long key: a digest of the whole key follows. `_escape` never produces it.
DIGESTED = "%~"

# Braces would move the hash tag, `%` is our own escape, and the rest cannot be printed or encoded.
_UNSAFE = re.compile(r"[{}%\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_BYTES = 200
_HEAD_CHARS = 40


class RedisKeys(NamedTuple):
    """A lock's key and its Redis keys. They share one hash tag, so a Cluster keeps them in one slot."""

    key: str
    lock: str
    token: str
    waiters: str
    woken: str

    @classmethod
    def of(cls, key: str, prefix: str = DEFAULT_PREFIX) -> RedisKeys:
        """Different keys always get different Redis keys, whatever text they contain."""
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"a lock's key must be a non-empty str, not {key!r}")
        return cls.around(key, f"{prefix}{{{_safe(key)}}}")

    @classmethod
    def around(cls, key: str, lock: str) -> RedisKeys:
        """The Redis keys that belong to the hash called `lock`."""
        return cls(key, lock, f"{lock}:token", f"{lock}:waiters", f"{lock}:woken")

    @property
    def newest(self) -> str:
        """The hash of the newest call of each task that replaces others."""
        return f"{self.lock}:newest"

    def done(self, message: str) -> str:
        """The key that tells the other deliveries of a message that its task has ended."""
        return f"{self.lock}:done{message}"

    def unacked(self, message: str) -> str:
        """The hash of the deliveries of a message that the broker may deliver again."""
        return f"{self.lock}:unacked{message}"

    @property
    def pending(self) -> str:
        """The hash of the calls that were published and have not started."""
        return f"{self.lock}:pending"

    def superseded(self, task_id: str) -> str:
        """The key that tells a pending call that a later one has taken its place."""
        return f"{self.lock}:superseded:{task_id}"


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str) or _UNSAFE.search(prefix):
        raise ConfigurationError(
            f"rlock_prefix must be a str without braces, percent signs or control characters, not {prefix!r}"
        )
    return prefix


def _safe(key: str) -> str:
    if len(key) <= _MAX_BYTES:  # escaping a key of megabytes takes seconds
        escaped = _UNSAFE.sub(_escape, key)
        if len(escaped) * 4 <= _MAX_BYTES or len(escaped.encode()) <= _MAX_BYTES:
            return escaped
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    head = _UNSAFE.sub(_escape, key[:_HEAD_CHARS])[:_HEAD_CHARS]
    return f"{head}{DIGESTED}{digest}"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
