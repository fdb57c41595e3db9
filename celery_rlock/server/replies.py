"""What is said to the lock server, and what it answers."""

from __future__ import annotations

from typing import NamedTuple

from celery_rlock.core.name import Name


class Taken(NamedTuple):
    token: int


class Busy(NamedTuple):
    lease_left: float
    holder: str  # worker/delivery:task-id
    name: Name
    task_id: str = ""
    task: str = ""  # the name of the holder's task, if it is one
    since: str = ""  # the server's time, in microseconds


class Heir(NamedTuple):
    """Who has a key after its owner, in the name of the same task, and how long."""

    delivery: str  # QUEUED or RESTING
    seconds: float


class Place(NamedTuple):
    """A place among those who wait for a lock."""

    name: Name
    waiter: str  # listener:delivery:task-id
    since: str
    keep: float


class Gone(NamedTuple):
    """The owner wanted to enter again what it does not hold any more."""
