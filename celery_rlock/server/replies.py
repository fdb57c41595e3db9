"""What the lock asks of its server, and what the server answers."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys


class AcquireReply(IntEnum):
    """The first element of what lua/acquire.lua and lua/acquire_place.lua return."""

    TAKEN = 1
    BUSY = 0
    GONE = -1
    TOO_LATE = -2  #: the request arrived after its deadline
    LINE = 2  #: the lock is free, but its first waiter must be woken
    OTHER_FORM = 3  #: the key is held as one whole, or in places: the other script knows about it


class ReleaseReply(IntEnum):
    """What lua/release.lua returns."""

    RELEASED = 1
    STILL_HELD = 2  #: an early release of a task whose message was redelivered
    FREE = 0  #: the lock did not exist any more
    NOT_OWNER = -1
    WAKE_AGAIN = 3  #: the first waiters are gone, and none has been woken yet


class ReplaceReply(IntEnum):
    """The first element of what lua/replace.lua returns."""

    TOO_OLD = 0  #: a newer call replaces the caller too
    TOLD = 1  #: the holder is told to end
    WAIT = 2  #: the holder is not to end


class RedeliveryReply(IntEnum):
    """What lua/redelivery.lua returns about the first delivery of a message."""

    ENDED = 2
    RUNNING = 1
    UNKNOWN = 0


class ReserveReply(IntEnum):
    """The first element of what lua/reserve.lua returns."""

    RESERVED = 1
    BUSY = 0
    TOO_LATE = -2
    BEING_PUBLISHED = 2  #: all places are taken, some by calls that may yet fail to be published


class QueueReply(IntEnum):
    """The first element of what lua/queue.lua returns."""

    QUEUED = 1
    QUEUED_INSTEAD = 2  #: of the older call that the caller named
    NAME_OLDER = 3  #: nothing has changed: ask again, and name this older call
    NOT_QUEUED = 0
    SUPERSEDED = -1


class UnqueueReply(IntEnum):
    """The first element of what lua/unqueue.lua returns."""

    LEFT = 1
    SUPERSEDED = 0
    RESERVED = 2  #: its publisher has not said yet that it is published


class Replacement(NamedTuple):
    """What lua/replace.lua returns to a call that wants to run instead of the holder."""

    newer: str = ""  #: the id of a newer call, which replaces this one too
    is_told: bool = False  #: whether the holder is told to end
    heard_for: float | None = None  #: for how many seconds the holder has known that; None: it does not know
    holder: Owner | None = None  #: the holder that is told to end; its worker is not known


class Taken(NamedTuple):
    """The owner holds the lock, under this token."""

    token: int
    slot: int = 0  #: which of the places it has


class Busy(NamedTuple):
    """As many other owners hold the lock as may."""

    lease_left: float  #: seconds after which the lock may be free, unless renewed
    owner: Owner
    redis_keys: RedisKeys
    task: str = ""  #: the name of the holder's task; empty for an RLock in other code
    since: int = 0  #: the server's time of this answer, in microseconds
    limit: int = 1  #: how many owners may hold the lock, as its caller said

    @property
    def holder(self) -> str:
        return str(self.owner)


class Gone(NamedTuple):
    """The owner wanted to re-enter a lock that it does not hold any more."""


class Successor(NamedTuple):
    """What keeps a key after its owner has left, for the same task, and for how long."""

    delivery: str  #: QUEUED or RESTING
    seconds: float


class Release(NamedTuple):
    """How an owner leaves a lock."""

    depth: int = 0  #: the owner's depth afterwards; 0 frees the lock
    early: bool = False  #: keep the lock if the task's message was redelivered: its end is not known yet
    ended: bool = False  #: the task has ended: tell the other deliveries of its message, if there are any
    republished: bool = False  #: with `early` or `ended`: an earlier delivery published the message again
    successor: Successor | None = None  #: keeps the key instead of freeing it
    fence: str = ""  #: the token or the attempt of the ownership to leave; empty: any of this owner
    unused: bool = False  #: nothing has run under the lock, so its place need not rest


class PendingRequest(NamedTuple):
    """A call that wants a place among the pending calls of its keys."""

    task_id: str
    attempt: str  #: names this publication
    worker: str
    task: str
    limit: int
    replace: bool = False  #: take the place of an older call if there is none
    alone: bool = False  #: only while the same task does not run
    kept: bool = False  #: no later call may take its place
    postpone: float = 0  #: seconds for which later calls may postpone the run
    order: int = 0  #: when the call was made, as the server said about another key; 0: now


class Reserved(NamedTuple):
    """The call may be published. It is to be queued then."""

    order: int
    postponable: float | None = None  #: seconds until which the run may be postponed; None: as the call says
    older: str = ""  #: the call whose place it is to take


class Queued(NamedTuple):
    """What became of a call that was published."""

    is_queued: bool
    older: str = ""  #: the call that it superseded
    later: str = ""  #: the call by which it is superseded


class Unqueued(NamedTuple):
    """What became of a call whose run is about to begin, or that gives up its place."""

    later: str = ""  #: the call by which it is superseded
    reserved_by: str = ""  #: the publication that has to be queued before the run begins


class Place(NamedTuple):
    """A waiter's place in the line for a lock."""

    redis_keys: RedisKeys
    waiter: str  #: listener:delivery:task-id; with a limit, listener/limit:delivery:task-id
    since: int  #: when the waiter found the lock busy, by the server's clock in microseconds; 0: now
    keep: float  #: seconds after which Redis forgets the place unless the waiter asks again


def text(value: bytes | str | None) -> str:
    """A reply as text; "?" for a field that is missing."""
    if value is None:
        return "?"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
