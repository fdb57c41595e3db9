"""Why a lock is held: one sentence, from its record in Redis and the answers of the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery import Celery
from kombu.exceptions import OperationalError

from celery_rlock.cli.rows import holder
from celery_rlock.doctor.output import counted, duration
from celery_rlock.server.failures import brief
from celery_rlock.server.lock_record import LockRecord
from celery_rlock.server.owner import HELD

#: What the commands read from the rows of each part of an answer.
_NEEDED = {
    "held": {"owner", "since", "pid", "id", "task"},
    "waiting": {"id", "task"},
    "received": {"id", "task"},
}


@dataclass(frozen=True)
class WorkerAnswers:
    """The answers to `celery inspect locks`, by nodename; a worker that did not answer in time is missing."""

    answers: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    asked: bool = True
    error: str | None = None  # why the broker could not be asked

    def run_of(self, record: LockRecord) -> dict[str, Any] | None:
        """The holder's run, if its worker says that it is running."""
        held = self.answers.get(record.owner.worker, {}).get("held", [])
        return next((run for run in held if run["owner"] == str(record.owner)), None)

    def waiter_in_worker(self, task_id: str) -> tuple[str, dict[str, Any]] | None:
        """The worker in which the task waits, and what that worker says about it."""
        return self.find("waiting", task_id)

    def find(self, part: str, task_id: str) -> tuple[str, dict[str, Any]] | None:
        """The worker that has the task in this part of its answer, and what it says about it."""
        for worker, answer in self.answers.items():
            for row in answer.get(part, []):
                if row["id"] == task_id:
                    return worker, row
        return None


class Verdict(NamedTuple):
    text: str
    is_fine: bool


def ask_workers(app: Celery, lock: str, timeout: float) -> WorkerAnswers:
    """What all workers know about the lock with this Redis key. With a timeout of 0 they are not asked."""
    return _ask(app, {"key": lock}, timeout, None)


def ask_about(app: Celery, task_id: str, timeout: float) -> WorkerAnswers:
    """What all workers know about the task with this id."""
    return _ask(app, {"task_id": task_id}, timeout, None)


def ask_holder(app: Celery, record: LockRecord, timeout: float) -> WorkerAnswers:
    """The same, from the holder's worker alone; not asked if the holder is no running task of a worker."""
    if record.is_script or record.state != HELD:
        return WorkerAnswers(asked=False)
    return _ask(app, {"key": record.redis_keys.lock}, timeout, [record.owner.worker])


def _ask(app: Celery, about: dict[str, str], timeout: float, workers: list[str] | None) -> WorkerAnswers:
    if not timeout:
        return WorkerAnswers(asked=False)
    try:
        replies = app.control.broadcast(
            "locks", arguments=about, reply=True, timeout=timeout, destination=workers
        )
    except Exception as error:  # noqa: BLE001 - each broker has its own; some have no broadcast at all
        return WorkerAnswers(error=brief(error))
    return WorkerAnswers({name: _rows(answer) for reply in replies or () for name, answer in reply.items()})


def _rows(answer: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows of one answer that are complete. Any client of the broker may answer, with anything."""
    given = answer if isinstance(answer, dict) else {}
    return {
        part: [row for row in _list(given.get(part)) if isinstance(row, dict) and needed <= row.keys()]
        for part, needed in _NEEDED.items()
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def ping(app: Celery, timeout: float) -> set[str]:
    """The nodenames of all workers that answer. OperationalError if the broker cannot be asked."""
    try:
        replies = app.control.ping(timeout=timeout) or []
    except Exception as error:
        raise OperationalError(brief(error)) from error
    return {name for reply in replies for name in reply}


def verdict(record: LockRecord, workers: WorkerAnswers) -> Verdict:
    """Who holds the lock, whether that holder lives, and what will end it."""
    text, is_fine = _on_holder(record, workers)
    waiting = f" {counted(record.waiters, 'waiter')} behind it." if record.waiters else ""
    return Verdict(text + waiting, is_fine)


def _on_holder(record: LockRecord, workers: WorkerAnswers) -> Verdict:
    left = duration(record.lease_left)
    if record.pending:
        return Verdict(
            f"{holder(record)}, is queued or scheduled, and runs when the key is free. If its message was "
            f"purged, the next call is published in {left} at the latest.",
            is_fine=True,
        )
    if record.state == "queued":
        return Verdict(
            f"{holder(record)}, is queued or scheduled, and keeps the key until it has run. If its message "
            f"was purged, the key is free in {left}.",
            is_fine=True,
        )
    if record.state == "resting":
        return Verdict(
            f"{holder(record)} has ended; lock_hold_at_least keeps the key for {left}.", is_fine=True
        )
    if record.is_script:
        what = f"{holder(record)}" if record.task else record.owner.worker
        return Verdict(
            f"held by {what}, a process that is not a worker. It renews its lease while it lives; otherwise "
            f"the key is free in {left}.",
            is_fine=True,
        )
    return _on_task(record, workers, left)


def _on_task(record: LockRecord, workers: WorkerAnswers, left: str) -> Verdict:
    holds = f"{holder(record)} has held it for {duration(record.held_for)}"
    if not workers.asked:
        return Verdict(f"{holds}; its lease ends in {left} unless renewed.", is_fine=True)
    if workers.error is not None:
        return Verdict(
            f"{holds}; the broker did not answer, so its worker was not asked; the lease ends in {left} "
            "unless renewed.",
            is_fine=False,
        )
    if workers.run_of(record) is not None:
        return Verdict(f"{holds}, and is running.", is_fine=True)
    if record.owner.worker not in workers.answers:
        return Verdict(
            f"{holds}, but its worker does not answer: the worker is dead or busy. Unless it renews the "
            f"lease, the key is free in {left}.",
            is_fine=False,
        )
    if not record.task:
        return Verdict(f"{holds}, with an RLock inside a task.", is_fine=True)
    return Verdict(
        f"{holds}, but its worker does not run it: it has just ended, or the key is free in {left}.",
        is_fine=False,
    )
