"""The Lua scripts as Python verbs, with their replies and errors in our own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_rlock.core.name import DEFAULT_PREFIX, Name, Owner
from celery_rlock.errors import ConfigurationError, LockUnavailable

#: How long the copies of a message may ask whether its task has ended.
DONE_MEMORY_MS = 3_600_000

#: How long a freed key's last token is remembered, in case the server's clock goes back.
TOKEN_MEMORY_MS = 60_000


_ANY_SILENCE = (RedisConnectionError, RedisTimeoutError)


class Taken(NamedTuple):
    token: int


class Busy(NamedTuple):
    lease_left: float
    holder: str  # worker/delivery:task-id


class Gone(NamedTuple):
    """The owner wanted to enter again what it does not hold any more."""


@dataclass(frozen=True)
class Script:
    source: str
    sha: str

    @classmethod
    def load(cls, verb: str) -> Script:
        source = (_folder() / f"{verb}.lua").read_text(encoding="utf-8")
        return cls(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def _folder() -> Path:
    """The scripts lie inside an installed package, and at the top of a source tree."""
    package = Path(__file__).parents[1]
    packaged = package / "lua"
    return packaged if packaged.is_dir() else package.parent / "lua"


_ACQUIRE, _RELEASE, _RENEW, _COPY, _FINISH = map(
    Script.load, ("acquire", "release", "renew", "copy", "finish")
)


class Scripts:
    """The verbs acquire, renew and release on one server.

    Each may run twice without harm, so one whose connection broke is sent once more. What still fails
    is `LockUnavailable`; a key that holds something else is a `ConfigurationError`.
    """

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self.client, self.prefix = client, prefix

    def name(self, key: str) -> Name:
        return Name.of(key, self.prefix)

    def acquire(self, name: Name, owner: Owner, depth: int, ttl: float, task: str) -> Taken | Busy | Gone:
        args = (owner.field, owner.worker, depth, _ms(ttl), task)
        status, *rest = self._run(_ACQUIRE, name, (name.lock, name.token), args)
        if status == 1:
            return Taken(int(rest[0]))
        if status == 0:
            return Busy(max(0, rest[0]) / 1000, f"{_text(rest[2])}/{_text(rest[1])}")
        return Gone()

    def release(self, name: Name, owner: Owner, depth: int, *, early: bool = False) -> int:
        """1: done; 0: the key was gone; -1: somebody else holds it.

        With `early`, 2: a copy of the owner's message was delivered, so it still holds the lock, to `finish`.
        """
        args = (owner.field, depth, TOKEN_MEMORY_MS, int(early))
        return int(self._run(_RELEASE, name, (name.lock, name.token), args, again=_ANY_SILENCE))

    def finish(self, name: Name, owner: Owner, retries: int) -> int:
        """Free the lock of a task that has ended and tell the copies of its message. Answers as `release`."""
        keys = (name.lock, name.token, name.done(owner.task_id, retries))
        args = (owner.field, TOKEN_MEMORY_MS, DONE_MEMORY_MS)
        return int(self._run(_FINISH, name, keys, args, again=_ANY_SILENCE))

    def copy(self, name: Name, task_id: str, retries: int) -> int:
        """A message was delivered again. 2: its task has ended; 1: it holds the lock; 0: neither."""
        return int(self._run(_COPY, name, (name.lock, name.done(task_id, retries)), (task_id,)))

    def renew(self, leases: Iterable[tuple[Name, Owner, float]]) -> list[bool | Exception]:
        """Renew many `(name, owner, ttl)` in one round trip: an answer, or what went wrong, for each."""
        wanted = list(leases)
        answers = self._renew(wanted, "EVALSHA", _RENEW.sha)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            again = self._renew([wanted[i] for i in missing], "EVAL", _RENEW.source)
            for i, answer in zip(missing, again, strict=True):
                answers[i] = answer
        return [answer if isinstance(answer, Exception) else answer == 1 for answer in answers]

    def locked(self, name: Name) -> bool:
        with _explaining(name):
            return bool(self.client.exists(name.lock))

    def owned(self, name: Name, owner: Owner) -> bool:
        with _explaining(name):
            return bool(self.client.hexists(name.lock, owner.field))

    def _renew(self, leases: Sequence[tuple[Name, Owner, float]], command: str, script: str) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipe:
            for name, owner, ttl in leases:
                pipe.execute_command(command, script, 1, name.lock, owner.field, _ms(ttl))
            return pipe.execute(raise_on_error=False)

    def _run(
        self,
        script: Script,
        name: Name,
        keys: Sequence[str],
        args: Sequence[object],
        again: tuple[type[RedisError], ...] = (RedisConnectionError,),
    ) -> Any:
        with _explaining(name):
            try:
                return self._call(script, keys, args)
            except again:
                return self._call(script, keys, args)

    def _call(self, script: Script, keys: Sequence[str], args: Sequence[object]) -> Any:
        try:
            return self.client.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return self.client.execute_command("EVAL", script.source, len(keys), *keys, *args)


@contextmanager
def _explaining(name: Name) -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
            raise ConfigurationError(
                f"the Redis key {name.lock!r} holds something that is not a lock: delete it, or choose "
                "another lock_key or rlock_prefix"
            ) from error
        raise LockUnavailable(name.key, f"{type(error).__name__}: {error}") from error


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _text(value: bytes | str | None) -> str:
    if value is None:
        return "?"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
