"""What the workers say, asked through the broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from celery_rlock.core.entry import Entry

if TYPE_CHECKING:
    from celery import Celery


@dataclass(frozen=True)
class Fleet:
    """The answers of `celery inspect locks`, by nodename; what is not here did not answer in time."""

    answers: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    asked: bool = True
    error: str | None = None  # the broker itself could not be asked

    def run_of(self, entry: Entry) -> dict[str, Any] | None:
        """The holder's run, if its worker says that it goes on."""
        held = self.answers.get(entry.owner.worker, {}).get("held", [])
        return next((run for run in held if run["owner"] == str(entry.owner)), None)

    def worker_of(self, task_id: str) -> tuple[str, dict[str, Any]] | None:
        """The worker that a waiter lies in, and what that says of it."""
        for worker, answer in self.answers.items():
            for waiter in answer.get("waiting", []):
                if waiter["id"] == task_id:
                    return worker, waiter
        return None


def ask(app: Celery, lock: str, timeout: float, worker: str | None = None) -> Fleet:
    """What the workers (or one) know of the lock with this name in Redis; a broker that is down is told."""
    if not timeout:
        return Fleet(asked=False)
    try:
        replies = app.control.broadcast(
            "locks",
            arguments={"key": lock},
            reply=True,
            timeout=timeout,
            destination=None if worker is None else [worker],
        )
    except Exception as error:  # noqa: BLE001 - each broker has its own; some cannot ask workers at all
        return Fleet(error=f"{type(error).__name__}: {error}")
    return Fleet({name: answer for reply in replies or () for name, answer in reply.items()})


def ping(app: Celery, timeout: float) -> set[str]:
    """The nodenames of all workers that answer. OperationalError when they cannot be asked."""
    try:
        replies = app.control.ping(timeout=timeout) or []
    except Exception as error:
        raise OperationalError(f"{type(error).__name__}: {error}") from error
    return {name for reply in replies for name in reply}
