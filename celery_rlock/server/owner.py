"""The owner of a lock, and how its name is made."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from celery_rlock.log import printable

#: Stand in the place of a delivery. QUEUED: the task was published and has not started. RESTING: its run has
#: ended, and `lock_hold_at_least` keeps the key.
QUEUED = "queued"
RESTING = "rest"

#: Begins the delivery of a run that has no message: with `task_always_eager`, the publisher runs its task.
EAGER = "eager-"

#: The state of a lock, by what stands in the place of a delivery. With a delivery it is held.
HELD = "held"
_STATES = {QUEUED: "queued", RESTING: "resting"}


class Owner(NamedTuple):
    """The holder of a lock, written `worker/delivery:task-id`. The delivery makes each owner unique."""

    worker: str
    delivery: str
    task_id: str

    @property
    def field(self) -> str:
        """The owner's field in the lock's hash. The worker's name stands in a field of its own."""
        return f"{self.delivery}:{self.task_id}"

    @property
    def message(self) -> str:
        """Equal for all deliveries of one message: task id, number of retries, number of replacements."""
        _, dot, counts = self.delivery.partition(".")
        return f"{dot}{counts}:{self.task_id}"

    @property
    def state(self) -> str:
        """The state of a lock that this owner has: "held", "queued" or "resting"."""
        return _STATES.get(self.delivery.partition(".")[0], HELD)

    @classmethod
    def of_field(cls, worker: str, field: str) -> Owner:
        delivery, _, task_id = field.partition(":")
        return cls(worker, delivery, task_id)

    def __str__(self) -> str:
        """For people: every control character is escaped."""
        return printable(f"{self.worker}/{self.field}" if self.delivery else self.worker)


def new_delivery(retries: int = 0, replaced: int = 0) -> str:
    """A nonce that names one delivery of a message.

    `self.retry()` and `self.replace()` publish another message with the same task id, so their counts follow
    the nonce: `41deb9de.1.0` is a delivery of the first retry.
    """
    nonce = secrets.token_hex(4)
    return f"{nonce}.{retries}.{replaced}" if retries or replaced else nonce
