"""Where the task with a certain id is: in line, running, queued, resting or done; and what keeps it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from celery import states
from celery.backends.base import DisabledBackend

from celery_rlock.cli import rows
from celery_rlock.cli.session import Session
from celery_rlock.cli.verdict import Verdict, WorkerAnswers, ask_about, ask_holder, verdict
from celery_rlock.doctor.output import ExitCode, counted, duration, moment
from celery_rlock.running.redelivery import visibility_timeout
from celery_rlock.server.failures import brief
from celery_rlock.server.lock_record import LockRecord, WaitRecord
from celery_rlock.server.owner import HELD

#: How many of the waiters just before the task are named.
_BEFORE = 3

_COLOURS = {"running": "green", "waiting": "yellow", "pending": "cyan", "resting": "yellow", "unknown": "red"}


def is_uuid(text: str) -> bool:
    """Whether the text has the form of the ids that Celery makes."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


@dataclass(frozen=True)
class Wait:
    """A place in which the task waits."""

    place: WaitRecord
    holder: LockRecord | None
    holder_verdict: str
    before: list[str]  #: the ids of the waiters just before it, the nearest last
    worker: str | None  #: the worker that says that the task waits there
    is_alive: bool | None  #: whether its process still listens for its turn; None: not known

    @property
    def text(self) -> str:
        waiter = self.place.waiter
        since = f"since {moment(waiter.since)} ({duration(waiter.waits_for)})"
        return f"it waits for {self.place.key!r}, number {self.place.number} in line, {since}"

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.place.key,
            "redis_key": self.place.lock,
            "place": self.place.number,
            "since": round(self.place.waiter.since, 3),
            "waits_for": round(self.place.waiter.waits_for, 3),
            "before": self.before,
            "held": self.holder and rows.as_json(self.holder),
            "verdict": self.holder_verdict,
            "listener": self.place.waiter.listener,
            "worker": self.worker,
            "alive": self.is_alive,
        }


class Result(NamedTuple):
    """What the result backend says about the task."""

    state: str | None  #: None: it could not be asked, or there is none
    text: str
    is_news: bool = True  #: whether to tell it although the task was found elsewhere


@dataclass(frozen=True)
class Trace:
    """Everything that is known about the task."""

    task_id: str
    held: list[tuple[LockRecord, Verdict]]
    waits: list[Wait]
    workers: WorkerAnswers
    result: Result
    redelivered_after: str

    @property
    def state(self) -> str:
        """running, waiting, pending, resting, done or unknown: the first of these that fits."""
        kinds = {record.state for record, _ in self.held}
        fitting = (
            ("running", HELD in kinds),
            ("waiting", bool(self.waits) or self._is_in("waiting")),
            ("running", self._is_in("held")),  # it is about to take its lock, or has just left it
            ("pending", "queued" in kinds or self._is_in("received")),
            ("resting", "resting" in kinds),
            ("done", self.result.state in states.READY_STATES),
            ("pending", self.result.state == states.RETRY),  # its message comes again
        )
        return next((state for state, fits in fitting if fits), "unknown")

    @property
    def is_fine(self) -> bool:
        gone = any(wait.is_alive is False for wait in self.waits)
        return self.state != "unknown" and not gone and all(judged.is_fine for _, judged in self.held)

    @property
    def task(self) -> str | None:
        """The task's name, as far as a lock or a worker knows it."""
        named = [record.task for record, _ in self.held if record.task]
        found = (self.workers.find(part, self.task_id) for part in ("held", "waiting", "received"))
        return next(iter([*named, *(str(row["task"]) for _, row in filter(None, found))]), None)

    def lines(self) -> Iterator[str]:
        """What to tell, one sentence each."""
        for record, judged in self.held:
            yield f"key {record.key}: {judged.text}"
        for wait in self.waits:
            yield wait.text
            yield f"  behind  {wait.holder_verdict}"
            if wait.before:
                yield f"  behind  {_waiters_before(wait)}"
            yield f"  in      {self._process_of(wait)}"
        yield from self._said_by_workers()
        if self.state == "unknown" or self.result.is_news:
            yield self.result.text
        if self.state == "pending" and not self.held and not self._is_in("received"):
            yield (
                "it waits for its lock or for a retry: its message is in a queue, or in a worker that did "
                f"not answer; if that worker is gone, {self.redelivered_after}"
            )
        if self.workers.error is not None:
            yield f"the workers could not be asked, because the broker does not answer: {self.workers.error}"
        if self.state == "unknown":
            yield (
                "no lock, no line and no worker that answered has it: it is in a queue, or it has ended and "
                "its result is not stored, or there is no such task"
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "state": self.state,
            "fine": self.is_fine,
            "task": self.task,
            "text": list(self.lines()),
            "held": [{**rows.as_json(record), "verdict": judged.text} for record, judged in self.held],
            "waiting": [wait.as_json() for wait in self.waits],
            "result": self.result.state,
            "workers": {
                "asked": self.workers.asked,
                "error": self.workers.error,
                "answered": sorted(self.workers.answers),
            },
        }

    def _is_in(self, part: str) -> bool:
        return self.workers.find(part, self.task_id) is not None

    def _process_of(self, wait: Wait) -> str:
        if wait.worker is not None:
            return f"{wait.worker}, which answers"
        named = f"(listener {wait.place.waiter.listener})"
        if wait.is_alive is False:
            return f"a process that is gone {named}: {self.redelivered_after}"
        alive = "lives" if wait.is_alive else "may live: this user may not run PUBSUB NUMSUB"
        return f"a process that {alive} {named}; it waits in place, or its worker did not answer"

    def _said_by_workers(self) -> Iterator[str]:
        if (run := self.workers.find("held", self.task_id)) is not None:
            worker, row = run
            since = f" since {moment(row['since'])}" if row["since"] else ""
            yield f"{worker} runs it in process {row['pid']}{since}"
        waiting = self.workers.find("waiting", self.task_id)
        if waiting is not None and not self.waits:
            worker, row = waiting
            yield f"it waits for {row.get('key')!r} in {worker}, which answers; it has no place in line"
        if (received := self.workers.find("received", self.task_id)) is not None:
            yield f"{received[0]} has received it and starts it later: at its ETA, or when a process is free"


def explain_id(session: Session, task_id: str, timeout: float) -> ExitCode:
    """Write where the task is. Exit code 1: it is not known, or its worker seems to be dead."""
    trace = _trace(session, task_id, timeout)
    output = session.output
    if output.as_json:
        output.document(trace.as_json())
    else:
        named = f"{trace.task}[{task_id}]" if trace.task else f"task {task_id}"
        output.line((named, "bold"), ": ", (trace.state, _COLOURS.get(trace.state, "")))
        for line in trace.lines():
            output.line(f"  {line}")
    if trace.state == "unknown" and session.find(task_id):
        output.problem(f"{task_id!r} is also a key, and its lock is held: celery rlock show {task_id}")
    return ExitCode.FINE if trace.is_fine else ExitCode.PROBLEM


def _trace(session: Session, task_id: str, timeout: float) -> Trace:
    inventory, app = session.inventory, session.app
    workers = ask_about(app, task_id, timeout)
    found = [record for batch in inventory.locks() for record in batch if record.owner.task_id == task_id]
    seconds = visibility_timeout(app)
    return Trace(
        task_id,
        [(record, verdict(record, workers)) for record in found],
        [_wait(session, place, workers, timeout) for place in inventory.places_of(task_id)],
        workers,
        _result(session, task_id),
        f"the broker delivers its message again; with Redis as the broker, {seconds:g} s after its delivery "
        "(visibility_timeout)",
    )


def _wait(session: Session, place: WaitRecord, workers: WorkerAnswers, timeout: float) -> Wait:
    inventory, waiter = session.inventory, place.waiter
    (found,) = inventory.find(place.lock)
    holders = [record for record in found if not record.pending]
    holder = min(holders, key=lambda record: record.lease_left, default=None)  # its place is free first
    there = workers.waiter_in_worker(waiter.task_id)
    silent = inventory.silent(place.lock, [waiter.listener])
    asked = ask_holder(session.app, holder, timeout) if holder is not None else workers
    judged = verdict(holder, asked).text if holder is not None else "no holder: the lock is free"
    if len(holders) > 1:
        judged += f" {counted(len(holders) - 1, 'other holder')}."
    named = min(_BEFORE, place.number - 1)
    _, before = inventory.waiters(place.lock, named, place.number - 1 - named) if named else (0, [])
    return Wait(
        place,
        holder,
        judged,
        [other.task_id for other in before],
        there[0] if there else None,
        True if there else None if silent is None else waiter.listener not in silent,
    )


def _waiters_before(wait: Wait) -> str:
    others = wait.place.number - 1 - len(wait.before)
    more = f"{counted(others, 'waiter')}, then " if others > 0 else ""
    return f"{more}{', '.join(wait.before)}"


def _result(session: Session, task_id: str) -> Result:
    if isinstance(session.app.backend, DisabledBackend):
        return Result(None, "the app has no result backend, so how it ended is not stored", is_news=False)
    try:
        state = str(session.app.AsyncResult(task_id).state)
    except Exception as error:  # noqa: BLE001 - each backend has its own errors
        return Result(None, f"the result backend could not be asked: {brief(error)}")
    if state == states.PENDING:
        return Result(state, "the result backend has no state of it", is_news=False)
    return Result(state, f"the result backend has the state {state}")
