"""All locks of a server: found in steps that keep it busy for a moment only, and read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import redis
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from celery_rlock.core.cluster import Client, primaries, server_of
from celery_rlock.core.entry import Entry, WaiterEntry, entry_of, key_in, waiter_of
from celery_rlock.core.scripts import text

#: How many keys the server looks at in one SCAN, and how many locks are read in one round trip.
SCAN_COUNT = 500
BATCH = 100

#: More fields than a lock has; a foreign hash at its place is not read to its end.
_FIELDS = 32

#: No row waits longer than this for its batch to be full.
_GATHER_FOR = 0.1

_ELSEWHERE = (MovedError, AskError, TryAgainError)


@dataclass
class Progress:
    """How far a search has come."""

    keys: int = 0  # that the servers have
    looked_at: int = 0
    foreign: list[str] = field(default_factory=list)  # Redis keys at a lock's place that hold something else


@dataclass
class Inventory:
    """The locks under one prefix, on a server, behind Sentinels or in a Cluster."""

    client: Client
    prefix: str
    progress: Progress = field(default_factory=Progress)

    def locks(self, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[list[Entry]]:
        """The locks whose keys are wanted, in batches as they are found; each batch may be empty.

        Each lock that is held during the whole search is found, and found once. It never uses KEYS.
        """
        servers = primaries(self.client)
        self.progress = Progress(sum(int(server.dbsize()) for server in servers))
        seen: set[str] = set()
        for server in servers:
            for names in self._gathered(server):
                new = [name for name in names if name not in seen and wanted(key_in(name, self.prefix)[0])]
                seen.update(new)
                yield self._read(server, new)

    def find(self, *names: str) -> list[Entry | None]:
        """The locks with these names in Redis, None for each that nobody holds."""
        return [next(iter(self._read(server_of(self.client, name), [name])), None) for name in names]

    def waiters(self, name: str, limit: int) -> tuple[int, list[WaiterEntry]]:
        """How many wait for the lock with this name in Redis, and the first of them in their order."""
        client: Any = self.client
        now = _seconds(server_of(self.client, name).time())
        count = int(client.zcard(f"{name}:waiters"))
        places = client.zrange(f"{name}:waiters", 0, limit - 1, withscores=True)
        return count, [waiter_of(text(place), float(since), now) for place, since in places]

    def _gathered(self, server: redis.Redis) -> Iterator[list[str]]:
        """The names that SCAN finds, so many at a time that reading them is worth a trip, but soon."""
        names: list[str] = []
        began = monotonic()
        for found in self._scanned(server):
            names += found
            if len(names) >= BATCH or monotonic() - began > _GATHER_FOR:
                yield from (names[i : i + BATCH] for i in range(0, len(names), BATCH))
                names, began = [], monotonic()
        yield from (names[i : i + BATCH] for i in range(0, len(names), BATCH))

    def _scanned(self, server: redis.Redis) -> Iterator[list[str]]:
        cursor: Any = None
        while cursor != 0:
            cursor, found = server.scan(
                cursor or 0, match=f"{_literal(self.prefix)}{{*}}", count=SCAN_COUNT, _type="hash"
            )
            cursor = int(cursor)
            self.progress.looked_at = min(self.progress.keys, self.progress.looked_at + SCAN_COUNT)
            yield [text(name) for name in found]

    def _read(self, server: redis.Redis, names: Iterable[str]) -> list[Entry]:
        names = list(names)
        if not names:
            return []
        with server.pipeline(transaction=False) as pipe:
            pipe.time()
            for name in names:
                pipe.hscan(name, 0, count=_FIELDS)
                pipe.pttl(name)
                pipe.zcard(f"{name}:waiters")
            now, *answers = pipe.execute(raise_on_error=False)
        _raise_first([now])
        each = zip(names, answers[::3], answers[1::3], answers[2::3], strict=True)
        return [entry for name, *reply in each if (entry := self._entry(name, reply, _seconds(now)))]

    def _entry(self, name: str, reply: list[Any], now: float) -> Entry | None:
        if any(isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE") for answer in reply):
            self.progress.foreign.append(name)
            return None
        if any(isinstance(answer, _ELSEWHERE) for answer in reply):
            reply = self._followed(name)
        _raise_first(reply)
        (_, fields), lease_ms, waiters = reply
        read = {text(name): text(value) for name, value in fields.items()}
        entry = entry_of(name, self.prefix, read, now=now, lease_ms=int(lease_ms), waiters=int(waiters))
        if entry is None and read:
            self.progress.foreign.append(name)
        return entry

    def _followed(self, name: str) -> list[Any]:
        """Its slot has moved to another server of the Cluster: redis-py finds it."""
        client: Any = self.client
        return [
            client.hscan(name, 0, count=_FIELDS),
            client.pttl(name),
            client.zcard(f"{name}:waiters"),
        ]


def _literal(prefix: str) -> str:
    """As a pattern that matches only itself."""
    return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in prefix)


def _seconds(time: tuple[int, int]) -> float:
    return int(time[0]) + int(time[1]) / 1_000_000


def _raise_first(answers: Iterable[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
