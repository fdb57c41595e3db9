"""A lock as Redis has it, for people to read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from celery_rlock.errors import ConfigurationError
from celery_rlock.server.owner import EAGER, QUEUED, Owner
from celery_rlock.server.redis_keys import DIGESTED, RedisKeys

#: How an execution outside of any task names its worker and its task (see core/execution.py).
_PROCESS = re.compile(r"\d+@.+")
_THREAD = "thread-"

_NUMBER = re.compile(r"[0-9]{1,18}")

#: The record of one of several places, in the order of `PlaceRecord`.
_PLACE = re.compile(r"([0-9]{1,18}) " * 7 + r"([01]) (\S*) (.*)\n(.*)", re.DOTALL)

#: The record of a pending call that is published: when its place ends, until when it may be postponed, its
#: number, the name of its publication, its publisher, and its task.
_PENDING = re.compile(r"([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18}) 1 [01] (\S+) (.*)\n(.*)", re.DOTALL)

#: Instead of an owner: the place is kept for a waiter that was woken.
_TURN = "turn:"


@dataclass(frozen=True)
class LockRecord:
    """A lock that is held by a running task or other code, queued (published, not started), or resting."""

    key: str
    digested: bool  #: the key is longer; Redis has only its beginning and a digest
    redis_keys: RedisKeys
    state: str
    owner: Owner
    task: str
    since: int  #: when it was taken, in seconds of the server's clock
    held_for: float
    lease_left: float
    depth: int
    token: int
    waiters: int  #: in line for the key; with several holders, only the first of them says so
    redelivered: bool  #: the holder's message was delivered again, and that delivery waits for its end
    slot: int = 0  #: which of the places the holder has
    limit: int = 1  #: how many holders there may be, as this one says
    pending: str = ""  #: of a call that is queued behind the holders: the name of its publication
    replaced_by: str = ""  #: the id of the task that replaces the holder's, which is told to end

    @property
    def is_script(self) -> bool:
        """Whether the holder runs outside of any worker: an `RLock`, or a task called directly or eagerly."""
        return bool(_PROCESS.fullmatch(self.owner.worker)) and (
            self.owner.task_id.startswith(_THREAD) or self.owner.delivery.startswith(EAGER)
        )


class PlaceRecord(NamedTuple):
    """One of several places of a key: what the hash has beside its owner."""

    ends: int  #: when its lease ends, by the server's clock in microseconds
    slot: int
    limit: int
    depth: int
    token: int
    rests_until: int  #: when the place may be free, by the server's clock in microseconds; 0: at the release
    since: int
    redelivered: int
    attempt: str
    worker: str
    task: str


def place_in(record: str) -> PlaceRecord | None:
    """What the scripts wrote about a place; None for anything else."""
    match = _PLACE.fullmatch(record)
    if match is None:
        return None
    ends, slot, limit, depth, token, rests_until, since, redelivered = map(int, match.groups()[:8])
    return PlaceRecord(
        ends, slot, limit, depth, token, rests_until, since, redelivered, match[9], match[10], match[11]
    )


class WaiterRecord(NamedTuple):
    """A waiter in line for a lock."""

    place: str  #: the waiter's name in Redis, listener:delivery:task-id
    listener: str
    task_id: str
    since: float
    waits_for: float


class WaitRecord(NamedTuple):
    """A place in the line of a lock."""

    key: str
    lock: str  #: the lock's Redis key
    number: int  #: 1 is the first in line
    waiter: WaiterRecord


def records_of(
    lock: str, prefix: str, fields: Mapping[str, str], *, now: float, lease_ms: int, waiters: int
) -> list[LockRecord] | None:
    """The holders of the lock with these fields, by their places; None if the hash is not a lock."""
    key, digested = key_in(lock, prefix)
    if not (digested or _is_name_of(key, lock, prefix)):
        return None
    holders = _places(fields, now) if "@token" not in fields else _whole(fields, lease_ms)
    if holders is None:
        return None
    return [
        LockRecord(
            key=key,
            digested=digested,
            redis_keys=RedisKeys.around(key, lock),
            state=owner.state,
            owner=owner,
            task=place.task,
            since=min(place.since, int(now)),
            held_for=max(0.0, now - min(place.since, int(now))),
            lease_left=max(0.0, lease_left),
            depth=place.depth,
            token=place.token,
            waiters=0 if number else waiters,
            redelivered=bool(place.redelivered),
            slot=place.slot,
            limit=place.limit,
            replaced_by=fields.get("@replaced", ""),
        )
        for number, (owner, place, lease_left) in enumerate(holders)
    ]


def pending_calls(lock: str, prefix: str, fields: Mapping[str, str], now: float) -> list[LockRecord]:
    """The calls that are queued behind the holders of a lock, the oldest first. Leaves out what is none."""
    key, digested = key_in(lock, prefix)
    found = [(match, task_id) for task_id, text in fields.items() if (match := _PENDING.fullmatch(text))]
    calls = []
    for match, task_id in sorted(found, key=lambda call: int(call[0][3])):
        ends, order, attempt, worker, task = int(match[1]), int(match[3]), match[4], match[5], match[6]
        since, lease_left = min(order // 1_000_000, int(now)), ends / 1_000_000 - now
        owner = Owner(worker, QUEUED, task_id)
        if lease_left > 0:
            calls.append(
                LockRecord(
                    key=key,
                    digested=digested,
                    redis_keys=RedisKeys.around(key, lock),
                    state=owner.state,
                    owner=owner,
                    task=task,
                    since=since,
                    held_for=max(0.0, now - since),
                    lease_left=lease_left,
                    depth=0,
                    token=0,
                    waiters=0,
                    redelivered=False,
                    pending=attempt,
                )
            )
    return calls


_Holders = list[tuple[Owner, PlaceRecord, float]]


def _whole(fields: Mapping[str, str], lease_ms: int) -> _Holders | None:
    """The one owner that has the whole key."""
    owners = [name for name in fields if not name.startswith("@") and ":" in name]
    depth, token = _number(fields.get(owners[0])) if len(owners) == 1 else None, _number(fields.get("@token"))
    if depth is None or token is None:
        return None
    since, redelivered = _number(fields.get("@since")) or 0, int("@redelivered" in fields)
    worker, task = fields.get("@worker", "?"), fields.get("@task", "")
    place = PlaceRecord(0, 0, 1, depth, token, 0, since, redelivered, "", worker, task)
    return [(Owner.of_field(worker, owners[0]), place, lease_ms / 1000)]


def _places(fields: Mapping[str, str], now: float) -> _Holders | None:
    """The owners of places whose leases have not ended."""
    places = {field: place_in(record) for field, record in fields.items()}
    holders = [
        (Owner.of_field(place.worker, field), place, place.ends / 1_000_000 - now)
        for field, place in places.items()
        if place is not None and not field.startswith(_TURN) and place.ends > now * 1_000_000
    ]
    if any(place is None for place in places.values()):
        return None
    return sorted(holders, key=lambda holder: holder[1].slot)


def waiter_of(place: str, since_us: float, now: float) -> WaiterRecord:
    listener, _, rest = place.partition(":")
    listener = listener.partition("/")[0]  # the waiter's limit follows
    # Any user of the server may have written the score: it may be infinite, or none of our times.
    since = min(max(since_us / 1_000_000, 0.0), now)
    return WaiterRecord(place, listener, rest.partition(":")[2], since, max(0.0, now - since))


def key_in(lock: str, prefix: str) -> tuple[str, bool]:
    """The key behind a Redis name, and whether only its beginning and a digest are known.

    A name that no key has, because its escapes are not UTF-8, stands for itself.
    """
    escaped = lock.removeprefix(prefix).removeprefix("{").removesuffix("}")
    if DIGESTED in escaped:
        return escaped, True
    try:
        return unquote(escaped, errors="surrogatepass"), False
    except UnicodeDecodeError:
        return escaped, False


def names_of(key: str, prefix: str) -> list[RedisKeys]:
    """The locks that a user may mean by `key`: the key itself, its Redis name, or what `ls` shows."""
    names = [RedisKeys.of(key, prefix)]
    if _is_utf8(key) and key.startswith(prefix + "{") and key.endswith("}"):
        names.append(RedisKeys.around(key_in(key, prefix)[0], key))
    if _is_utf8(key) and DIGESTED in key:
        names.append(RedisKeys.around(key, f"{prefix}{{{key}}}"))
    unescaped = _without_escapes(key)
    if unescaped not in {key, ""}:
        names.append(RedisKeys.of(unescaped, prefix))
    return names


def _without_escapes(shown: str) -> str:
    r"""Turn `a\x1bb`, as `ls` prints it, back into the real characters."""
    return re.sub(
        r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr])",
        lambda match: match[0].encode().decode("unicode_escape"),
        shown,
    )


def _is_name_of(key: str, lock: str, prefix: str) -> bool:
    """Whether the lock of this key has this name. Another program may have written another one."""
    try:
        return RedisKeys.of(key, prefix).lock == lock
    except ConfigurationError:  # the key is empty
        return False


def _is_utf8(text: str) -> bool:
    """Whether a client can send the text. Bytes of a command line that are not UTF-8 become surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: str | None) -> int | None:
    """A number as the scripts write it, or None. `str.isdigit` takes `²`, and int() refuses 5,000 digits."""
    return int(value) if value and _NUMBER.fullmatch(value) else None
