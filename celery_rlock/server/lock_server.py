"""The lock server: the verbs of the lock, and their implementation on Redis."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_rlock.errors import LockUnavailable, RLockError
from celery_rlock.server.clock import ServerClock, clock_of, now
from celery_rlock.server.cluster import Client, node_to_answer, refuse_old_primary
from celery_rlock.server.failures import FAILURES, brief, translated, translation
from celery_rlock.server.lock_record import place_in
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import DEFAULT_PREFIX, RedisKeys
from celery_rlock.server.replies import (
    AcquireReply,
    Busy,
    Gone,
    PendingRequest,
    Place,
    Queued,
    QueueReply,
    RedeliveryReply,
    Release,
    ReleaseReply,
    Replacement,
    ReplaceReply,
    Reserved,
    ReserveReply,
    Taken,
    Unqueued,
    UnqueueReply,
    text,
)
from celery_rlock.server.script import Script
from celery_rlock.server.seal import Seal
from celery_rlock.server.standalone import sender_of
from celery_rlock.server.wakeups import Wakeups, wakeups_of

#: How long a redelivered message can still learn that its task has ended (as in lua/release.lua).
DONE_MEMORY_MS = 3_600_000

#: How long a woken waiter may take to acquire the lock before it is the next waiter's turn (as in
#: lua/release.lua and lua/pass.lua).
WOKEN_TRUST_MS = 1_000

#: How often one call goes on removing waiters whose processes are gone, 100 each time. The next call goes on.
MOST_WAKES = 150

#: How often one acquire asks, when the lock changes under each of its looks. The first one may tell the time.
MOST_TRIES = 5

_MOST_DIGITS = 17

_NO_OWNER = ""
_WANTS_PLACE = 1

#: Errors after which the same command may succeed over a new connection.
BROKEN = (RedisConnectionError, ReadOnlyError)
ANY_SILENCE = (*BROKEN, RedisTimeoutError)

#: In the place of a delivery that published its message again: the message was redelivered before.
_REDELIVERED = "redelivered"

_ACQUIRE, _ACQUIRE_PLACE, _RELEASE, _RENEW, _REPLACE, _REDELIVERY, _UNACKED = map(
    Script.load, ("acquire", "acquire_place", "release", "renew", "replace", "redelivery", "unacked")
)
_RESERVE, _QUEUE, _UNQUEUE = map(Script.load, ("reserve", "queue", "unqueue"))
_JOIN, _WAIT, _PASS = map(Script.load, ("join", "wait", "pass"))


#: A dict, because to call an Enum costs a microsecond.
_RELEASE_REPLIES = {int(reply): reply for reply in ReleaseReply}


class Renewal(NamedTuple):
    """One lease to renew."""

    redis_keys: RedisKeys
    owner: Owner
    token: int
    ttl: float
    replicas: int = 0  #: replicas that must have the renewal


class LockServer(Protocol):
    """Where locks are kept: Redis, or nowhere when locking is switched off.

    Every verb may run twice without harm. A server that does not answer is LockUnavailable; a Redis key that
    holds something else is a ConfigurationError.
    """

    prefix: str

    @property
    def identity(self) -> Hashable:
        """Equal for lock servers that surely keep the same locks."""

    @property
    def patience(self) -> float:
        """Seconds after which a request that was not answered is given up."""

    @property
    def wakeups(self) -> Wakeups:
        """Tells the waiters of this process when it is their turn."""

    def redis_keys(self, key: str) -> RedisKeys:
        """The Redis keys of a lock's key."""

    def acquire(
        self,
        redis_keys: RedisKeys,
        owner: Owner,
        depth: int,
        ttl: float,
        task: str,
        *,
        attempt: str = "",
        replicas: int = 0,
        place: Place | None = None,
        since: int = 0,
        limit: int = 1,
        hold: float = 0,
    ) -> Taken | Busy | Gone:
        """Take the lock at depth 1, or re-enter it deeper, in the ownership that `attempt` names.

        If the lock is busy, take `place` in line. A caller that has waited before, `since` then, goes before
        all who came later. With a `limit`, so many owners may hold the lock, and a place is kept for `hold`
        seconds from now, also when its owner leaves or dies earlier. LockUnavailable if fewer than `replicas`
        replicas have the lock: then the caller must undo the acquire.
        """

    def release(self, redis_keys: RedisKeys, owner: Owner, release: Release) -> ReleaseReply:
        """Leave the lock; at depth 0 free it and wake the first waiter."""

    def replace(  # noqa: PLR0917 - in the order of the script's arguments
        self,
        redis_keys: RedisKeys,
        holder: Owner | None,
        task: str,
        task_id: str,
        since: int,
        keep: float,
        *,
        comes_again: bool,
    ) -> Replacement:
        """A call of this task, waiting since then (0: now), wants to run instead of this holder (None: any).

        It counts as the newest call for `keep` seconds. With `comes_again` the holder's message may be
        delivered again, and is not to run then.
        """

    def renew(self, renewals: Iterable[Renewal]) -> list[bool | str | Exception]:
        """Renew leases: whether each is still held under its token, or what went wrong.

        Instead of True the answer may be the id of the task that replaces the owner's.

        It is an error if fewer than `replicas` replicas have a renewal: a replica that takes over would end
        the lease earlier.
        """

    def join(self, places: Iterable[Place]) -> list[int | Exception]:
        """Take these places at the end of their lines, in this order.

        Returns for each since when it is taken, by the server's clock in microseconds. 0: it is not, because
        another delivery of the waiter's message has the lock.
        """

    def wait(self, places: Iterable[Place]) -> list[float | Exception]:
        """Take these places in line, or ask again from them.

        Returns for each the seconds after which to ask again unless woken before; 0 means try to acquire now.
        """

    def give_up(self, place: Place, *, pass_turn: bool = True) -> None:
        """Leave the line. With `pass_turn`, if it was this waiter's turn, the next waiter is woken."""

    def pass_on(self, place: Place) -> bool:
        """Keep the place, and give the turn to a waiter of another process. Returns whether there was one."""

    def wake(self, redis_keys: RedisKeys, instead_of: str = "") -> bool:
        """Wake the first waiter if the lock is free, also instead of a waiter that does not use its turn.

        Returns False if so many waiters were gone that the next call must go on.
        """

    def redelivery(self, redis_keys: RedisKeys, owner: Owner, *, mark: bool = True) -> RedeliveryReply | str:
        """Ask what became of the message that this owner is a delivery of.

        The answer may be the id of the task that replaces this one.

        With `mark`, a run of the message that holds the lock learns that the message was redelivered.
        """

    def mark_ended(self, redis_keys: RedisKeys, owner: Owner) -> None:
        """Tell the other deliveries of this owner's message that its task has ended."""

    def mark_unacked(self, redis_keys: RedisKeys, owner: Owner, *, redelivered: bool = False) -> None:
        """This delivery publishes its message again. Until it is acknowledged, the broker may redeliver it.

        With `redelivered` there surely are several deliveries of the message.
        """

    def mark_acked(self, redis_keys: RedisKeys, owner: Owner) -> None:
        """This delivery, which published its message again, is acknowledged."""

    def reserve(self, redis_keys: RedisKeys, request: PendingRequest, lease: float) -> Reserved | Busy | None:
        """Reserve a place among the pending calls, for a call that is about to be published.

        None: another call is being published, which may fail. Ask again soon.
        """

    def queue(
        self,
        redis_keys: RedisKeys,
        request: PendingRequest,
        lease: float,
        *,
        older: str = "",
        retry_of: int = 0,
    ) -> Queued:
        """The call is published, and takes the place of the `older` one that was named when it was reserved.

        With `retry_of`, it is the retry of the run with this token, which holds the
        lock and reserved nothing.
        """

    def unqueue(
        self, redis_keys: RedisKeys, task_id: str, attempt: str = "", *, begins: bool = False
    ) -> Unqueued:
        """The call is not pending any more: its run is about to begin, or never will.

        With an `attempt`, only what was published under this name.
        """

    def superseded_by(self, redis_keys: RedisKeys, task_id: str) -> str:
        """The id of the later call that took the place of this one; empty if none did."""

    def token(self, redis_keys: RedisKeys, owner: Owner) -> int:
        """The token under which this owner holds the lock; 0 if it does not."""

    def locked(self, redis_keys: RedisKeys) -> bool:
        """Whether any owner holds the lock."""

    def seal(self, what: str) -> str:
        """A proof that a user of this lock server wrote the text; empty if the server does not answer."""


class RedisLockServer:
    """The lock server on Redis or Valkey: one server, Sentinel or Cluster.

    A verb whose connection broke is sent once more.
    """

    def __init__(self, client: Client, prefix: str = DEFAULT_PREFIX) -> None:
        self.client, self.prefix = client, prefix
        self.channels = f"{prefix}wake:"
        self._clock: ServerClock = clock_of(client)
        self._send = sender_of(client)
        self._seal = Seal(self._send, prefix)

    @property
    def identity(self) -> Hashable:
        return id(self.client)

    @property
    def patience(self) -> float:
        return self._clock.patience

    @property
    def wakeups(self) -> Wakeups:
        return wakeups_of(self.client, self.channels, self.wake)

    def redis_keys(self, key: str) -> RedisKeys:
        return RedisKeys.of(key, self.prefix)

    def acquire(
        self,
        redis_keys: RedisKeys,
        owner: Owner,
        depth: int,
        ttl: float,
        task: str,
        *,
        attempt: str = "",
        replicas: int = 0,
        place: Place | None = None,
        since: int = 0,
        limit: int = 1,
        hold: float = 0,
    ) -> Taken | Busy | Gone:
        keys = keys_of(redis_keys)
        forms = acquire_forms(depth, place, since, limit, hold)
        for _ in range(MOST_TRIES):
            sent = now()
            deadline = self._clock.deadline(sent)
            script, optional = forms[0]
            args = acquire_arguments(owner, ttl, task, attempt, deadline, optional)
            if replicas:
                status, time, *rest = self._run_replicated(script, redis_keys, keys, args, replicas)
            else:
                status, time, *rest = self._run(script, redis_keys, keys, args)
            self._clock.learn(int(time), sent)
            answer = acquire_answer(redis_keys, status, time, rest, limit)
            if answer is not None:
                return answer
            if status == AcquireReply.OTHER_FORM:
                forms = forms[::-1]
            elif status == AcquireReply.LINE and not self.wake(redis_keys):
                break
        return busy_line(redis_keys, int(time), limit)

    def release(self, redis_keys: RedisKeys, owner: Owner, release: Release) -> ReleaseReply:
        keys, args = release_call(redis_keys, owner, release)
        try:
            try:
                reply = _RELEASE_REPLIES[self._ask(_RELEASE, keys, args)]
            except ANY_SILENCE:
                reply = _RELEASE_REPLIES[self._ask(_RELEASE, keys, args)]
                if reply in {ReleaseReply.FREE, ReleaseReply.NOT_OWNER}:
                    return ReleaseReply.RELEASED  # by the first try, whose reply was lost
        except FAILURES as error:  # never a ConfigurationError: a release does not fail a task that has run
            raise LockUnavailable(redis_keys.key, brief(error)) from error
        if reply == ReleaseReply.WAKE_AGAIN:
            with suppress(RLockError):  # the lock is released; the waiters also look by themselves
                self.wake(redis_keys)
            return ReleaseReply.RELEASED
        return reply

    def wake(self, redis_keys: RedisKeys, instead_of: str = "") -> bool:
        keys, args = wake_call(redis_keys, instead_of)
        for _ in range(MOST_WAKES):
            if self._run(_RELEASE, redis_keys, keys, args, ANY_SILENCE) != ReleaseReply.WAKE_AGAIN:
                return True
        return False

    def join(self, places: Iterable[Place]) -> list[int | Exception]:
        calls = [
            ((redis_keys.lock, redis_keys.waiters), (waiter, _ms(keep)))
            for redis_keys, waiter, _, keep in places
        ]
        return _JOIN.run_all(self.client, calls)

    def wait(self, places: Iterable[Place]) -> list[float | Exception]:
        places = list(places)
        calls = [
            ((redis_keys.lock, redis_keys.waiters, redis_keys.woken), (waiter, since, _ms(keep)))
            for redis_keys, waiter, since, keep in places
        ]
        replies = _WAIT.run_all(self.client, calls)
        free = {place.redis_keys for place, reply in zip(places, replies, strict=True) if reply == 0}
        for redis_keys in free:
            with suppress(RLockError):  # trouble with one key must not hide the answers about the others
                self.wake(redis_keys)
        return [reply if isinstance(reply, Exception) else _seconds_to_wait(reply) for reply in replies]

    def give_up(self, place: Place, *, pass_turn: bool = True) -> None:
        with translated(place.redis_keys):
            had_place = self._send("ZREM", place.redis_keys.waiters, place.waiter)
        if pass_turn and not had_place:
            self.wake(place.redis_keys, instead_of=place.waiter)

    def pass_on(self, place: Place) -> bool:
        redis_keys = place.redis_keys
        keys = (redis_keys.lock, redis_keys.waiters, redis_keys.woken)
        args = (place.waiter, place.since, _ms(place.keep))
        return bool(self._run(_PASS, redis_keys, keys, args))

    def replace(  # noqa: PLR0917 - as above
        self,
        redis_keys: RedisKeys,
        holder: Owner | None,
        task: str,
        task_id: str,
        since: int,
        keep: float,
        *,
        comes_again: bool,
    ) -> Replacement:
        keys: tuple[str, ...] = (redis_keys.lock, redis_keys.newest)
        if comes_again and holder is not None:
            keys += (redis_keys.done(holder.message),)
        args = (holder.field if holder is not None else _NO_OWNER, task, task_id, since, _ms(keep))
        status, *rest = self._run(_REPLACE, redis_keys, keys, args, ANY_SILENCE)
        if status == ReplaceReply.TOO_OLD:
            return Replacement(newer=text(rest[0]))
        if status == ReplaceReply.WAIT:
            return Replacement()
        heard_for = None if rest[0] < 0 else rest[0] / 1000
        return Replacement(is_told=True, heard_for=heard_for, holder=Owner.of_field("", text(rest[1])))

    def redelivery(self, redis_keys: RedisKeys, owner: Owner, *, mark: bool = True) -> RedeliveryReply | str:
        keys = (redis_keys.lock, redis_keys.done(owner.message))
        reply = self._run(_REDELIVERY, redis_keys, keys, (owner.message, int(mark)))
        return RedeliveryReply(reply) if isinstance(reply, int) else text(reply)

    def mark_ended(self, redis_keys: RedisKeys, owner: Owner) -> None:
        with translated(redis_keys):
            self._send("SET", redis_keys.done(owner.message), 1, "PX", DONE_MEMORY_MS)

    def mark_unacked(self, redis_keys: RedisKeys, owner: Owner, *, redelivered: bool = False) -> None:
        keys = (redis_keys.unacked(owner.message), redis_keys.done(owner.message))
        delivery = _REDELIVERED if redelivered else owner.delivery
        self._run(_UNACKED, redis_keys, keys, (delivery, DONE_MEMORY_MS))

    def mark_acked(self, redis_keys: RedisKeys, owner: Owner) -> None:
        keys = (redis_keys.unacked(owner.message), redis_keys.done(owner.message))
        self._run(_UNACKED, redis_keys, keys, (owner.delivery, 0))

    def renew(self, renewals: Iterable[Renewal]) -> list[bool | str | Exception]:
        renewals = list(renewals)
        replies = _RENEW.run_all(
            self.client, renew_calls(renewals), [renewal.replicas for renewal in renewals]
        )
        return [reply if isinstance(reply, Exception) else renewal_answer(reply) for reply in replies]

    def reserve(self, redis_keys: RedisKeys, request: PendingRequest, lease: float) -> Reserved | Busy | None:
        keys = (redis_keys.pending, redis_keys.lock, redis_keys.superseded(request.task_id))
        for _ in range(2):  # the first answer may show that the server's clock has changed
            sent = now()
            deadline = self._clock.deadline(sent)
            status, time, *rest = self._run(
                _RESERVE, redis_keys, keys, _reserve_arguments(request, deadline, lease)
            )
            self._clock.learn(int(time), sent)
            if status != ReserveReply.TOO_LATE:
                break
        if status == ReserveReply.RESERVED:
            order, *older = rest
            return (
                Reserved(int(order), int(older[0]) / 1000, text(older[1])) if older else Reserved(int(order))
            )
        if status == ReserveReply.TOO_LATE:
            raise LockUnavailable(redis_keys.key, "the request arrived too late")
        answer = acquire_answer(redis_keys, status, time, rest)
        return answer if isinstance(answer, Busy) else None

    def queue(
        self,
        redis_keys: RedisKeys,
        request: PendingRequest,
        lease: float,
        *,
        older: str = "",
        retry_of: int = 0,
    ) -> Queued:
        of_retry = (retry_of, request.worker, request.task) if retry_of else ()
        while True:
            marks = (redis_keys.superseded(older), redis_keys.superseded(request.task_id))
            keys = (redis_keys.pending, redis_keys.lock, redis_keys.waiters, *marks)
            args = (request.task_id, request.attempt, _ms(lease), request.limit, DONE_MEMORY_MS, older)
            status, *rest = self._run(
                _QUEUE, redis_keys, keys, (*args, int(request.replace), *of_retry), ANY_SILENCE
            )
            if status != QueueReply.NAME_OLDER:
                break
            older = text(rest[0])
        if status == QueueReply.SUPERSEDED:
            return Queued(is_queued=False, later=text(rest[0]))
        is_instead = status == QueueReply.QUEUED_INSTEAD
        return Queued(is_instead or status == QueueReply.QUEUED, older if is_instead else "")

    def unqueue(
        self, redis_keys: RedisKeys, task_id: str, attempt: str = "", *, begins: bool = False
    ) -> Unqueued:
        keys = (redis_keys.pending, redis_keys.superseded(task_id))
        status, *rest = self._run(_UNQUEUE, redis_keys, keys, (task_id, attempt, int(begins)), ANY_SILENCE)
        if status == UnqueueReply.SUPERSEDED:
            return Unqueued(later=text(rest[0]))
        return Unqueued(reserved_by=text(rest[0])) if status == UnqueueReply.RESERVED else Unqueued()

    def superseded_by(self, redis_keys: RedisKeys, task_id: str) -> str:
        with translated(redis_keys):
            client: Any = self.client
            later = client.get(redis_keys.superseded(task_id))
        return "" if later is None else text(later)

    def token(self, redis_keys: RedisKeys, owner: Owner) -> int:
        with translated(redis_keys):
            found = self._send("HMGET", redis_keys.lock, owner.field, "@token")
        return token_of(*found)

    def locked(self, redis_keys: RedisKeys) -> bool:
        with translated(redis_keys):
            return bool(self._send("EXISTS", redis_keys.lock))

    def seal(self, what: str) -> str:
        return self._seal.of(what)

    def _run(
        self,
        script: Script,
        redis_keys: RedisKeys,
        keys: Sequence[str],
        args: Sequence[object],
        retry_on: tuple[type[RedisError], ...] = BROKEN,
    ) -> Any:
        try:
            try:
                return self._ask(script, keys, args)
            except retry_on:
                return self._ask(script, keys, args)
        except FAILURES as error:
            raise translation(error, redis_keys) from error

    def _ask(self, script: Script, keys: Sequence[str], args: Sequence[object]) -> Any:
        node, sent = node_to_answer(self.client, keys[0]), monotonic()
        reply = script.run(self._send, keys, args)
        refuse_old_primary(self.client, node, keys[0], sent)
        return reply

    def _run_replicated(
        self,
        script: Script,
        redis_keys: RedisKeys,
        keys: Sequence[str],
        args: Sequence[object],
        replicas: int,
    ) -> Any:
        with translated(redis_keys):
            try:
                reply, have_it = script.run_replicated(self.client, keys, args, replicas)
            except (*BROKEN, MovedError):
                reply, have_it = script.run_replicated(self.client, keys, args, replicas)
        if reply[0] == AcquireReply.TAKEN and have_it < replicas:
            reason = f"{have_it} of {replicas} replicas had it in time (lock_replicas)"
            raise LockUnavailable(redis_keys.key, reason)
        return reply


def keys_of(redis_keys: RedisKeys) -> tuple[str, str, str, str]:
    """The KEYS of lua/acquire.lua, and the first ones of lua/release.lua."""
    return redis_keys.lock, redis_keys.token, redis_keys.waiters, redis_keys.woken


def acquire_forms(
    depth: int, place: Place | None, since: int = 0, limit: int = 1, hold: float = 0
) -> tuple[tuple[Script, tuple[object, ...]], ...]:
    """The two scripts that acquire, each with its last arguments. The first is to be asked first.

    lua/acquire.lua takes the whole key, and lua/acquire_place.lua one of several places.
    """
    line = ("", since, 0) if place is None else (place.waiter, place.since, _ms(place.keep))
    in_place = _ACQUIRE_PLACE, (limit, _ms(hold) if hold else 0, depth, *line)
    # Most requests leave these arguments out.
    whole = (depth, *line) if depth != 1 or since or place is not None else ()
    if limit == 1:
        return (_ACQUIRE, whole), in_place
    return in_place, (_ACQUIRE, (depth, *line, _WANTS_PLACE))


def acquire_arguments(  # noqa: PLR0917 - in the order of the script's arguments
    owner: Owner, ttl: float, task: str, attempt: str, deadline: int, last: tuple[object, ...]
) -> tuple[object, ...]:
    """The arguments of a script that acquires. The last ones come from `acquire_forms`."""
    return (owner.field, owner.worker, _ms(ttl), task, attempt, deadline, *last)


def acquire_answer(
    redis_keys: RedisKeys, status: int, time: Any, rest: Sequence[Any], limit: int = 1
) -> Taken | Busy | Gone | None:
    """What a script that acquires says. None: ask again, after a wake if the status is LINE."""
    if status == AcquireReply.TAKEN:
        return Taken(*map(int, rest))
    if status == AcquireReply.BUSY:
        left, (field, worker, held_for) = rest[0], map(text, rest[1:])
        owner = Owner.of_field(worker, field)
        return Busy(max(0, left) / 1000, owner, redis_keys, held_for, int(time), limit)
    return Gone() if status == AcquireReply.GONE else None


def busy_line(redis_keys: RedisKeys, time: int, limit: int = 1) -> Busy:
    """The line is very long, or it changed under each of our looks: a waiter is about to take the lock."""
    return Busy(WOKEN_TRUST_MS / 1000, Owner("", "", ""), redis_keys, "", time, limit)


def release_call(
    redis_keys: RedisKeys, owner: Owner, release: Release
) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """The keys and arguments of lua/release.lua."""
    keys: tuple[str, ...] = keys_of(redis_keys)
    if release.ended or release.republished:
        keys += (redis_keys.done(owner.message),)
    if release.republished:
        keys += (redis_keys.unacked(owner.message),)
    args: tuple[object, ...] = (owner.field, release.fence)
    if release.successor is not None:
        successor, lease = release.successor
        args += (int(release.early), release.depth, f"{successor}:{owner.task_id}", _ms(lease))
    elif release.depth:
        args += (int(release.early), release.depth)
    elif release.early:
        args += (1,)
    return keys, args


def _reserve_arguments(request: PendingRequest, deadline: int, lease: float) -> tuple[object, ...]:
    """The arguments of lua/reserve.lua."""
    return (
        *(request.task_id, request.attempt, request.worker, request.task, deadline, _ms(lease)),
        *(request.limit, int(request.replace), int(request.alone), int(request.kept)),
        *(_ms(request.postpone), request.order),
    )


def wake_call(redis_keys: RedisKeys, instead_of: str) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """The keys and arguments with which lua/release.lua wakes the first waiter of a free lock."""
    return keys_of(redis_keys), (_NO_OWNER, "", 0, 0, "", 0, instead_of)


def renew_calls(renewals: Iterable[Renewal]) -> list[tuple[tuple[str, ...], tuple[object, ...]]]:
    """The keys and arguments of lua/renew.lua for each renewal."""
    return [
        ((redis_keys.lock,), (owner.field, token, _ms(ttl))) for redis_keys, owner, token, ttl, _ in renewals
    ]


def renewal_answer(reply: Any) -> bool | str:
    """What lua/renew.lua says: whether the lease is renewed, or which task replaces its owner."""
    return reply == 1 if isinstance(reply, int) else text(reply)


def _seconds_to_wait(reply: int) -> float:
    """0 from the script means that the first waiter was just woken; -1 that the key is this waiter's own."""
    return max(0, reply or WOKEN_TRUST_MS) / 1000


def token_of(held: bytes | str | None, token: bytes | str | None) -> int:
    """The token of the owner that has this depth, or this record of a place.

    It is 0 if the owner has none, or if another program wrote something else in its place, so that no renewal
    matches.
    """
    if held is None:
        return 0
    place = place_in(text(held)) if token is None else None
    digits = str(place.token) if place is not None else text(token)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < _MOST_DIGITS else 0


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
