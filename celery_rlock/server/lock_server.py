"""The Lua scripts as Python verbs, with their replies and errors in our own words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_rlock.core.cluster import Client
from celery_rlock.core.explain import explaining
from celery_rlock.core.name import DEFAULT_PREFIX, Name, Owner
from celery_rlock.core.replies import Busy, Gone, Heir, Place, Taken
from celery_rlock.core.script import Script
from celery_rlock.errors import LockUnavailable

#: How long the copies of a message may ask whether its task has ended.
DONE_MEMORY_MS = 3_600_000

#: How long a freed key's last token is remembered, in case the server's clock goes back.
TOKEN_MEMORY_MS = 60_000

#: How long a waiter that was woken may take to come, before those who ask make it the next one's turn.
WOKEN_TRUST_MS = 1_000

_NOBODY = ""

#: Over a new connection the next try may go well.
_BROKEN = (RedisConnectionError, ReadOnlyError)
_ANY_SILENCE = (*_BROKEN, RedisTimeoutError)

_ACQUIRE, _RELEASE, _RENEW, _COPY, _WAIT = map(Script.load, ("acquire", "release", "renew", "copy", "wait"))


class Scripts:
    """The verbs acquire, renew and release on one server, or a Cluster.

    Each may run twice without harm, so one whose connection broke is sent once more. What still fails
    is `LockUnavailable`; a key that holds something else is a `ConfigurationError`.
    """

    def __init__(self, client: Client, prefix: str = DEFAULT_PREFIX) -> None:
        self.client, self.prefix = client, prefix
        self.channels = f"{prefix}wake:"

    def name(self, key: str) -> Name:
        return Name.of(key, self.prefix)

    def acquire(
        self, name: Name, owner: Owner, depth: int, ttl: float, task: str, *, replicas: int = 0
    ) -> Taken | Busy | Gone:
        """With `replicas`, LockUnavailable unless so many have it: whoever asked is to release it then."""
        keys = (name.lock, name.token)
        args = (owner.field, owner.worker, depth, _ms(ttl), task)
        if replicas:
            status, *rest = self._run_replicated(_ACQUIRE, name, keys, args, replicas)
        else:
            status, *rest = self._run(_ACQUIRE, name, keys, args)
        if status == 1:
            return Taken(int(rest[0]))
        if status == 0:
            left, (field, worker, held_for, since) = rest[0], map(text, rest[1:])
            holder, task_id = f"{worker}/{field}", field.partition(":")[2]
            return Busy(max(0, left) / 1000, holder, name, task_id, held_for, since)
        return Gone()

    def release(
        self, name: Name, owner: Owner, depth: int, *, early: bool = False, heir: Heir | None = None
    ) -> int:
        """1: done; 0: the key was gone; -1: somebody else holds it.

        With `early`, 2: a copy of the owner's message was delivered, so it still holds the lock, to `finish`.
        """
        return self._leave(name, owner.field, depth, early=early, heir=heir)

    def undo(self, name: Name, owner: Owner, depth: int) -> None:
        """Take back an acquire whose answer did not come; wait for that once more at most."""
        self._leave(name, owner.field, depth, again=_BROKEN)

    def finish(self, name: Name, owner: Owner, retries: int, heir: Heir | None = None) -> int:
        """Free the lock of a task that has ended and tell the copies of its message. Answers as `release`."""
        return self._leave(name, owner.field, 0, done=(name.done(owner.task_id, retries),), heir=heir)

    def wake(self, name: Name) -> None:
        """If the lock is free it is the first waiter's turn."""
        self._leave(name, _NOBODY, 0)

    def wait(self, places: Iterable[Place]) -> list[float | Exception]:
        """Take these places, or ask from them: in how many seconds to ask again unless told before; 0: come.

        Where the lock is free and nobody is on the way to take it, the first waiter is woken.
        """
        places = list(places)
        calls = [
            ((name.lock, name.waiters, name.woken), (waiter, since, _ms(keep), WOKEN_TRUST_MS))
            for name, waiter, since, keep in places
        ]
        answers = _WAIT.run_all(self.client, calls)
        for name in {place.name for place, answer in zip(places, answers, strict=True) if answer == 0}:
            with suppress(LockUnavailable):
                self.wake(name)
        return [answer if isinstance(answer, Exception) else _quiet(answer) for answer in answers]

    def give_up(self, place: Place) -> None:
        """Give up a place. If its turn had come, it is the next one's."""
        with explaining(place.name):
            had_place = self.client.zrem(place.name.waiters, place.waiter)
        if not had_place:
            self.wake(place.name)

    def copy(self, name: Name, task_id: str, retries: int) -> int:
        """A message was delivered again. 2: its task has ended; 1: it holds the lock; 0: neither."""
        return int(self._run(_COPY, name, (name.lock, name.done(task_id, retries)), (task_id,)))

    def tell_ended(self, name: Name, task_id: str, retries: int) -> None:
        """Tell the copies of a message that its task has ended."""
        with explaining(name):
            self.client.set(name.done(task_id, retries), 1, px=DONE_MEMORY_MS)

    def renew(self, leases: Iterable[tuple[Name, Owner, float]]) -> list[bool | Exception]:
        """Renew many `(name, owner, ttl)` in one round trip: an answer, or what went wrong, for each."""
        calls = [((name.lock,), (owner.field, _ms(ttl))) for name, owner, ttl in leases]
        answers = _RENEW.run_all(self.client, calls)
        return [answer if isinstance(answer, Exception) else answer == 1 for answer in answers]

    def locked(self, name: Name) -> bool:
        with explaining(name):
            return bool(self.client.exists(name.lock))

    def owned(self, name: Name, owner: Owner) -> bool:
        with explaining(name):
            return bool(self.client.hexists(name.lock, owner.field))

    def _leave(
        self,
        name: Name,
        owner: str,
        depth: int,
        *,
        early: bool = False,
        done: tuple[str, ...] = (),
        heir: Heir | None = None,
        again: tuple[type[RedisError], ...] = _ANY_SILENCE,
    ) -> int:
        keys = (name.lock, name.token, name.waiters, name.woken, *done)
        memory = (TOKEN_MEMORY_MS, int(early), self.channels, WOKEN_TRUST_MS, DONE_MEMORY_MS)
        inherits = ("", 0)
        if heir is not None:
            inherits = (f"{heir.delivery}:{owner.partition(':')[2]}", _ms(heir.seconds))
        args = (owner, depth, *memory, *inherits)
        return int(self._run(_RELEASE, name, keys, args, again=again))

    def _run(
        self,
        script: Script,
        name: Name,
        keys: Sequence[str],
        args: Sequence[object],
        again: tuple[type[RedisError], ...] = _BROKEN,
    ) -> Any:
        with explaining(name):
            try:
                return script.run(self.client, keys, args)
            except again:
                return script.run(self.client, keys, args)

    def _run_replicated(
        self, script: Script, name: Name, keys: Sequence[str], args: Sequence[object], replicas: int
    ) -> Any:
        with explaining(name):
            try:
                reply, have_it = script.run_replicated(self.client, keys, args, replicas)
            except (*_BROKEN, MovedError):
                reply, have_it = script.run_replicated(self.client, keys, args, replicas)
        if reply[0] == 1 and have_it < replicas:
            reason = f"{have_it} of {replicas} replicas had it in time (lock_replicas)"
            raise LockUnavailable(name.key, reason)
        return reply


def _quiet(answer: int) -> float:
    return max(0, answer or WOKEN_TRUST_MS) / 1000


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def text(value: bytes | str | None) -> str:
    if value is None:
        return "?"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
