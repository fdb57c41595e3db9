"""A survey of all locks in Redis: how many there are, and the most important of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from time import monotonic

from celery_rlock.server.inventory import Inventory
from celery_rlock.server.lock_record import LockRecord, WaiterRecord
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import HELD

#: A survey stops here: counting more would take too long.
_MOST_LOCKS = 100_000

#: Locks of ours have shorter names in Redis. A longer one was written by another program, and is not kept.
_LONGEST_NAME = 1000

#: So many waiters of each lock that it keeps are read.
MOST_WAITERS = 20


@dataclass
class Survey:
    """How many locks and waiters there are; not complete if counting took too long."""

    locks: Counter[tuple[str, str]] = field(default_factory=Counter)  #: by label and state
    waiters: Counter[str] = field(default_factory=Counter)  #: by the label of the holder
    oldest: dict[str, float] = field(default_factory=dict)  #: seconds that the oldest is held, by label
    records: list[LockRecord] = field(default_factory=list)  #: the locks that were kept, see `survey`
    waiting: dict[str, list[WaiterRecord]] = field(default_factory=dict)  #: their first waiters, by Redis key
    is_complete: bool = False
    seconds: float = 0.0

    def count(self, record: LockRecord, task: str) -> None:
        self.locks[task, record.state] += 1
        if record.waiters:
            self.waiters[task] += record.waiters
        if record.state == HELD:
            self.oldest[task] = max(record.held_for, self.oldest.get(task, 0.0))


def survey(
    lock_server: RedisLockServer, label: Callable[[str], str], longest: float, keep: int = 0
) -> Survey:
    """Count all locks, in small steps, for at most `longest` seconds. Errors of redis-py pass through.

    Of the locks themselves it keeps at most `keep`: those with the most waiters, then those held longest.
    """
    found, start = Survey(), monotonic()
    inventory = Inventory(lock_server.client, lock_server.prefix)
    for batch in inventory.locks():
        for record in batch:
            found.count(record, label(record.task))
        found.records += [record for record in batch if len(record.redis_keys.lock) <= _LONGEST_NAME]
        if len(found.records) > 2 * keep:  # not after each batch: sorting takes time, too
            found.records = nlargest(keep, found.records, key=_importance)
        if monotonic() - start > longest or found.locks.total() > _MOST_LOCKS:
            break
    else:
        found.is_complete = True
    found.records = nlargest(keep, found.records, key=_importance)
    awaited = [record.redis_keys.lock for record in found.records if record.waiters]
    found.waiting = inventory.first_waiters(awaited, MOST_WAITERS)
    found.seconds = monotonic() - start
    return found


def _importance(record: LockRecord) -> tuple[int, float]:
    return record.waiters, record.held_for
