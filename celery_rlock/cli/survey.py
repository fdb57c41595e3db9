"""How many locks there are and who waits, counted in Redis without holding it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from celery_rlock.core.entry import HELD, Entry
from celery_rlock.core.inventory import Inventory

if TYPE_CHECKING:
    from celery_rlock.core.scripts import Scripts

_MOST_LOCKS = 100_000


@dataclass
class Survey:
    """What was found; `is_complete` is False when it took too long, or there were too many to count."""

    locks: Counter[tuple[str, str]] = field(default_factory=Counter)  #: by label and state
    waiters: Counter[str] = field(default_factory=Counter)  #: by the label of whom they wait for
    oldest: dict[str, float] = field(default_factory=dict)  #: seconds that the oldest is held, by label
    is_complete: bool = False
    seconds: float = 0.0

    def count(self, entry: Entry, task: str) -> None:
        self.locks[task, entry.state] += 1
        if entry.waiters:
            self.waiters[task] += entry.waiters
        if entry.state == HELD:
            self.oldest[task] = max(entry.held_for, self.oldest.get(task, 0.0))


def survey(scripts: Scripts, label: Callable[[str], str], longest: float) -> Survey:
    """Count all locks, for at most `longest` seconds. Whatever redis-py raises is raised."""
    found, start = Survey(), monotonic()
    for batch in Inventory(scripts.client, scripts.prefix).locks():
        for entry in batch:
            found.count(entry, label(entry.task))
        if monotonic() - start > longest or found.locks.total() > _MOST_LOCKS:
            break
    else:
        found.is_complete = True
    found.seconds = monotonic() - start
    return found
