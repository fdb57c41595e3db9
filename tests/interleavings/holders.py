"""Who has the lock: the owners in its hash, be it one owner of the whole key or several in their places."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from celery_rlock.server.lock_record import place_in
from tests.interleavings.virtual_server import NOW, Key

_TURN, _RESTS = "turn:", ("rest.", "rest:")


class Holder(NamedTuple):
    """An owner in the hash whose lease has not ended."""

    field: str
    token: str
    attempt: str
    depth: str
    left: int  #: milliseconds until its lease ends
    limit: int = 1
    slot: int = 0
    stays: int = 0  #: milliseconds for which the place stays taken, also without its owner

    @property
    def waiter(self) -> str:
        """The waiter for which this place is kept; empty if an owner has it."""
        return self.field.removeprefix(_TURN) if self.field.startswith(_TURN) else ""

    @property
    def rests(self) -> bool:
        return self.field.startswith(_RESTS)

    @property
    def identity(self) -> tuple[str, ...]:
        return self.field, self.token, self.attempt, self.depth

    @property
    def names(self) -> tuple[str, str]:
        """What fences a request for this hold."""
        return self.attempt, self.token


@lru_cache(maxsize=200_000)
def holders_of(lock: Key | None) -> tuple[Holder, ...]:
    """All that take a place now, also for a woken waiter, or because their place rests."""
    if lock is None:
        return ()
    fields = dict(zip(lock.values[::2], lock.values[1::2], strict=True))
    if "@token" in fields:
        owner = next(field for field in fields if not field.startswith("@"))
        return (Holder(owner, fields["@token"], fields["@attempt"], fields[owner], lock.left),)
    found = []
    for field, text in fields.items():
        record = place_in(text)
        assert record is not None, (field, text)
        left = (record.ends - NOW + 999) // 1000
        if left > 0:
            depth, token = str(record.depth), str(record.token)
            stays = max(0, (record.rests_until - NOW + 999) // 1000)
            found.append(Holder(field, token, record.attempt, depth, left, record.limit, record.slot, stays))
    return tuple(found)


def holder_of(lock: Key | None, field: str) -> Holder | None:
    return next((holder for holder in holders_of(lock) if holder.field == field), None)


def has_room(lock: Key | None, limit: int, *, beside_turns: bool = True) -> bool:
    """Whether an owner with this limit may enter beside those who are inside, and beside woken waiters."""
    inside = [holder for holder in holders_of(lock) if beside_turns or not holder.waiter]
    return len(inside) < min([limit, *(holder.limit for holder in inside)])


def limit_of(waiter: str) -> int:
    """The limit of a waiter, listener/limit:delivery:task-id."""
    _, slash, limit = waiter.partition(":")[0].partition("/")
    return int(limit) if slash else 1
