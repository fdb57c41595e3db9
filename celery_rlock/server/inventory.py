"""Lists all locks of a server, in small steps that never block it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import redis
from redis.exceptions import AskError, MovedError, NoPermissionError, ResponseError, TryAgainError

from celery_rlock.server.cluster import Client, by_server, primaries, server_of
from celery_rlock.server.lock_record import (
    LockRecord,
    WaiterRecord,
    WaitRecord,
    key_in,
    pending_calls,
    place_in,
    records_of,
    waiter_of,
)
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.replies import Release, ReleaseReply, text

#: How many keys one SCAN looks at, and how many locks one round trip reads.
SCAN_COUNT = 500
BATCH = 100

#: More fields than a lock has, unless it has many places. A foreign hash in a lock's place is not read to its
#: end.
_FIELDS = 32
_MOST_FIELDS = 100_000

#: The end of the name of the hash with the pending calls of a lock, and how many there may be.
_PENDING = ":pending"
_MOST_PENDING = 1000

#: A lock that was found is read after so many seconds at the latest, even if its batch is not full.
_GATHER_FOR = 0.1

_ELSEWHERE = (MovedError, AskError, TryAgainError)


@dataclass
class Progress:
    """How far a search has got."""

    keys: int = 0  #: how many keys the servers have
    looked_at: int = 0
    foreign: list[str] = field(default_factory=list)  #: Redis keys in a lock's place that hold something else


@dataclass
class Inventory:
    """The locks under one prefix: on one server, behind Sentinel or in a Cluster."""

    client: Client
    prefix: str
    progress: Progress = field(default_factory=Progress)

    def locks(self, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[list[LockRecord]]:
        """The locks whose keys are wanted, in batches as they are found. A batch may be empty.

        A lock that is held during the whole search is found exactly once. The search never uses KEYS.
        """
        servers = primaries(self.client)
        self.progress = Progress(sum(int(server.dbsize()) for server in servers))
        seen: set[str] = set()
        for server in servers:
            for names in self._gathered(server):
                new = [name for name in names if name not in seen and wanted(key_in(name, self.prefix)[0])]
                seen.update(new)
                yield self._read(server, new)

    def find(self, *names: str) -> list[list[LockRecord]]:
        """The holders of each lock with these Redis names, and behind them its pending calls."""
        return [self._read(server_of(self.client, name), [name]) for name in names]

    def waiters(self, name: str, limit: int, skip: int = 0) -> tuple[int, list[WaiterRecord]]:
        """How many waiters the lock has, and `limit` of them in order, without the first `skip`."""
        client: Any = self.client
        now = _seconds(server_of(self.client, name).time())
        try:
            count = int(client.zcard(f"{name}:waiters"))
            places = client.zrange(f"{name}:waiters", skip, skip + limit - 1, withscores=True)
        except ResponseError as error:
            if not _is_wrong_type(error):
                raise
            self.progress.foreign.append(f"{name}:waiters")
            return 0, []
        return count, [waiter_of(text(place), float(since), now) for place, since in places]

    def line(self, name: str) -> Iterator[tuple[int, WaiterRecord]]:
        """Every waiter of the lock with its number in line, the last one first.

        From the end, because waiters leave at the front: so none that stays is passed over between two steps.
        """
        client: Any = self.client
        now = _seconds(server_of(self.client, name).time())
        end = int(client.zcard(f"{name}:waiters"))
        while end > 0:
            start = max(0, end - SCAN_COUNT)
            places = client.zrange(f"{name}:waiters", start, end - 1, withscores=True)
            for number, (place, since) in enumerate(places, start + 1):
                yield number, waiter_of(text(place), float(since), now)
            end = start

    def places_of(self, task_id: str) -> list[WaitRecord]:
        """The places in which this task waits, also for locks that are free."""
        found = {}
        for server in primaries(self.client):
            for names in self._scanned(server, ":waiters", "zset"):
                for name in (name.removesuffix(":waiters") for name in names):
                    for number, waiter in self.line(name):
                        if waiter.task_id == task_id:
                            found[name, waiter.place] = WaitRecord(
                                key_in(name, self.prefix)[0], name, number, waiter
                            )
        return list(found.values())

    def silent(self, name: str, listeners: Iterable[str]) -> set[str] | None:
        """Those of the listeners that are gone: no process listens for the turn of their waiters.

        None if this user may not ask (`PUBSUB NUMSUB`).
        """
        server: Any = server_of(self.client, name)
        asked = sorted(set(listeners))
        found: set[str] = set()
        for start in range(0, len(asked), SCAN_COUNT):
            some = asked[start : start + SCAN_COUNT]
            try:
                counts = server.pubsub_numsub(*(f"{self.prefix}wake:{listener}" for listener in some))
            except NoPermissionError:
                return None
            found.update(
                listener for listener, (_, count) in zip(some, counts, strict=True) if not int(count)
            )
        return found

    def first_waiters(self, names: Sequence[str], limit: int) -> dict[str, list[WaiterRecord]]:
        """The first `limit` waiters of each of these locks, in order. Asks in batches.

        A lock whose waiters cannot be read now, because its slot moves, has none here.
        """
        found: dict[str, list[WaiterRecord]] = {}
        servers, _ = by_server(self.client, names)
        for server, places in servers:
            for start in range(0, len(places), BATCH):
                found |= self._lines(server, [names[place] for place in places[start : start + BATCH]], limit)
        return found

    def _lines(self, server: redis.Redis, names: list[str], limit: int) -> dict[str, list[WaiterRecord]]:
        with server.pipeline(transaction=False) as pipe:
            pipe.time()
            for name in names:
                pipe.zrange(f"{name}:waiters", 0, limit - 1, withscores=True)
            now, *answers = pipe.execute(raise_on_error=False)
        read = [[] if _is_wrong_type(line) or isinstance(line, _ELSEWHERE) else line for line in answers]
        _raise_first([now, *read])
        at = _seconds(now)
        return {
            name: [waiter_of(text(place), float(since), at) for place, since in line]
            for name, line in zip(names, read, strict=True)
        }

    def _gathered(self, server: redis.Redis) -> Iterator[list[str]]:
        """The Redis names that SCAN finds, gathered into batches."""
        names: list[str] = []
        began = monotonic()
        for found in self._scanned(server, "*", "hash"):
            locks = (name.removesuffix(_PENDING) for name in found)
            names += [name for name in dict.fromkeys(locks) if name.endswith("}") and name not in names]
            if len(names) >= BATCH or monotonic() - began > _GATHER_FOR:
                yield from (names[i : i + BATCH] for i in range(0, len(names), BATCH))
                names, began = [], monotonic()
        yield from (names[i : i + BATCH] for i in range(0, len(names), BATCH))

    def _scanned(self, server: redis.Redis, suffix: str, kind: str) -> Iterator[list[str]]:
        cursor: Any = None
        while cursor != 0:
            cursor, found = server.scan(
                cursor or 0, match=f"{_literal(self.prefix)}{{*}}{suffix}", count=SCAN_COUNT, _type=kind
            )
            cursor = int(cursor)
            self.progress.looked_at = min(self.progress.keys, self.progress.looked_at + SCAN_COUNT)
            yield [text(name) for name in found]

    def _read(self, server: redis.Redis, names: Iterable[str]) -> list[LockRecord]:
        names = list(names)
        if not names:
            return []
        with server.pipeline(transaction=False) as pipe:
            pipe.time()
            for name in names:
                pipe.hscan(name, 0, count=_FIELDS)
                pipe.pttl(name)
                pipe.zcard(f"{name}:waiters")
                pipe.hscan(f"{name}{_PENDING}", 0, count=_MOST_PENDING)
            now, *answers = pipe.execute(raise_on_error=False)
        _raise_first([now])
        each = zip(names, answers[::4], answers[1::4], answers[2::4], answers[3::4], strict=True)
        return [record for name, *reply in each for record in self._records(name, reply, _seconds(now))]

    def _records(self, name: str, reply: list[Any], now: float) -> list[LockRecord]:
        if _is_wrong_type(reply[3]):
            self.progress.foreign.append(f"{name}{_PENDING}")
            reply[3] = (0, {})
        if any(map(_is_wrong_type, reply)):
            self.progress.foreign.append(name)
            return []
        if any(isinstance(answer, _ELSEWHERE) for answer in reply):
            reply = self._followed(name)
        _raise_first(reply)
        (cursor, fields), lease_ms, waiters, (_, queued) = reply
        read = {text(name): text(value) for name, value in fields.items()}
        if int(cursor) and all(map(place_in, read.values())):
            read |= self._other_fields(name, int(cursor))
        records = records_of(name, self.prefix, read, now=now, lease_ms=int(lease_ms), waiters=int(waiters))
        if records is None and read:
            self.progress.foreign.append(name)
        pending = {text(task_id): text(record) for task_id, record in queued.items()}
        return [*(records or []), *pending_calls(name, self.prefix, pending, now)]

    def _other_fields(self, name: str, cursor: int) -> dict[str, str]:
        """The rest of a lock with many places."""
        client: Any = self.client
        read: dict[str, str] = {}
        while cursor and len(read) < _MOST_FIELDS:
            cursor, fields = client.hscan(name, cursor, count=SCAN_COUNT)
            read |= {text(field): text(value) for field, value in fields.items()}
        return read

    def _followed(self, name: str) -> list[Any]:
        """Ask through the Cluster client, which follows a slot that has moved."""
        client: Any = self.client
        return [
            client.hscan(name, 0, count=_FIELDS),
            client.pttl(name),
            client.zcard(f"{name}:waiters"),
            client.hscan(f"{name}{_PENDING}", 0, count=_MOST_PENDING),
        ]


def release_seen(lock_server: LockServer, record: LockRecord) -> ReleaseReply:
    """Free the ownership that was read, and no later one, also not of the same owner.

    A pending call loses its place: the next call is queued too.
    """
    if record.pending:
        lock_server.unqueue(record.redis_keys, record.owner.task_id, record.pending)
        return ReleaseReply.RELEASED
    return lock_server.release(record.redis_keys, record.owner, Release(fence=str(record.token)))


def _is_wrong_type(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")


def _literal(prefix: str) -> str:
    """The prefix as a glob pattern that matches only itself."""
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in prefix)


def _seconds(time: tuple[int, int]) -> float:
    return int(time[0]) + int(time[1]) / 1_000_000


def _raise_first(answers: Iterable[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
