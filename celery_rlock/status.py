"""What is in Redis about the lock of a call: `task.lock_of(…)`."""

from __future__ import annotations

from typing import NamedTuple

from celery_rlock.server.failures import FAILURES, not_a_lock, translation
from celery_rlock.server.inventory import Inventory, release_seen
from celery_rlock.server.lock_record import LockRecord
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import HELD
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import ReleaseReply

_FREE = "free"

#: The states of a lock. With several keys, the first of these that one of them has is the state of all.
_BY_WEIGHT = (HELD, "queued", "resting", _FREE)

#: The most waiters of one key that `waiters` lists.
_MOST_WAITERS = 1000


class Holder(NamedTuple):
    """The owner of one key, as Redis has it."""

    key: str
    state: str  #: "held"; "queued": published and not started; "resting": `lock_hold_at_least` keeps the key
    owner: str  #: `worker/delivery:task-id`
    worker: str  #: the nodename of the worker; `pid@host` of another process
    task: str  #: the name of the task; empty for an `RLock`
    task_id: str
    token: int
    since: int  #: when it took the key, in seconds of the server's clock
    held_for: float  #: seconds
    lease_left: float  #: seconds until the key is free, unless the lease is renewed
    slot: int = 0  #: which of the places of the key it has, with `lock_limit`
    limit: int = 1  #: how many may hold the key, as this owner says


class Waiter(NamedTuple):
    """A call that waits in line for one key."""

    key: str
    task_id: str
    waits_for: float  #: seconds


class LockStatus:
    """The keys of a call as they were in Redis when `task.lock_of(…)` looked.

    It does not change afterwards: ask again for what is there then.
    """

    def __init__(self, all_keys: list[RedisKeys], lock_server: RedisLockServer | None) -> None:
        """Without a lock server, because locking is switched off, every key is free."""
        self._all_keys = all_keys
        self._lock_server = lock_server
        self._records: list[LockRecord] = []
        self._waiters: list[Waiter] = []
        if lock_server is not None:
            for redis_keys in all_keys:
                self._look(lock_server, redis_keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the call, in sorted order."""
        return tuple(redis_keys.key for redis_keys in self._all_keys)

    @property
    def state(self) -> str:
        """ "free", "held", "queued" (published and not started) or "resting" (`lock_hold_at_least`).

        With several keys: "held" if one of them is held, else "queued" if one is queued, else "resting".
        """
        states = {record.state for record in self._records} or {_FREE}
        return next(state for state in _BY_WEIGHT if state in states)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The owners of those keys that are not free, in the order of the keys and of their places."""
        return tuple(map(_holder, self._records))

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        """The calls that wait in line, first come first: at most 1,000 for each key.

        A task that waits in a worker is in line with Celery 5.7 and newer.
        """
        return tuple(self._waiters)

    def release(self) -> bool:
        """Take the keys away from the holders that were seen, and wake the first waiters, also of free keys.

        Returns whether every holder that was seen has lost its key by this call. It is False if the keys were
        free. A holder that has released its key meanwhile, and an owner that came later, lose nothing. A
        running task is not stopped: it notices that its lock is lost. Raises LockUnavailable if Redis does
        not answer.
        """
        if self._lock_server is None:
            return False
        replies = [release_seen(self._lock_server, record) for record in self._records]
        awaited = {waiter.key for waiter in self._waiters} - {record.key for record in self._records}
        for redis_keys in self._all_keys:
            if redis_keys.key in awaited:  # whatever deleted this lock in Redis has woken no waiter
                self._lock_server.wake(redis_keys)
        return bool(replies) and all(reply == ReleaseReply.RELEASED for reply in replies)

    def __repr__(self) -> str:
        by = f" by {', '.join(holder.owner for holder in self.holders)}" if self._records else ""
        return f"<LockStatus {', '.join(self.keys)!r} {self.state}{by}, {len(self._waiters)} waiting>"

    def _look(self, lock_server: RedisLockServer, redis_keys: RedisKeys) -> None:
        inventory = Inventory(lock_server.client, lock_server.prefix)
        try:
            (records,) = inventory.find(redis_keys.lock)
            _, waiters = inventory.waiters(redis_keys.lock, _MOST_WAITERS)
        except FAILURES as error:
            raise translation(error, redis_keys) from error
        if inventory.progress.foreign:
            raise not_a_lock(inventory.progress.foreign[0])
        self._records += records
        self._waiters += [Waiter(redis_keys.key, waiter.task_id, waiter.waits_for) for waiter in waiters]


def _holder(record: LockRecord) -> Holder:
    return Holder(
        record.key,
        record.state,
        str(record.owner),
        record.owner.worker,
        record.task,
        record.owner.task_id,
        record.token,
        record.since,
        record.held_for,
        record.lease_left,
        record.slot,
        record.limit,
    )
