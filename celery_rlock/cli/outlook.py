"""What would happen to a call of a task now, and which options decide it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from celery import Celery

from celery_rlock.cli.rows import holder
from celery_rlock.doctor.output import counted, duration
from celery_rlock.options.options import Options
from celery_rlock.running.reschedule import CAN_BE_WOKEN
from celery_rlock.server.lock_record import LockRecord
from celery_rlock.server.owner import HELD


class Reason(NamedTuple):
    """An option that decides what happens."""

    option: str
    value: str
    source: str  # task, setting or default


class Outlook(NamedTuple):
    action: str  # run, retry, skip, fail, reject, replace, ask, duplicate
    text: str
    reasons: list[str]  # names of options, without lock_


def blocking(holders: list[LockRecord], limit: int) -> LockRecord | None:
    """The holder whose place is free first; None if another owner with this limit can enter."""
    if len(holders) < min([limit, *(holder.limit for holder in holders)]):
        return None
    first = min(holders, key=lambda holder: holder.lease_left)
    return replace(first, waiters=holders[0].waiters)


def outlook(
    task: Any,
    options: Options,
    keys: Sequence[LockRecord | None],
    pending: Sequence[Sequence[LockRecord]] = (),
) -> Outlook:
    """What happens to a call whose keys are held like this (None: free) when it is published and run.

    `pending` has the calls that are queued behind the holders of each key.
    """
    first = [calls[0] for calls in pending if 0 < options.pending_places <= len(calls)]
    if first and _is_duplicate(task, first, len(keys)):
        return _duplicate(options, first[0])
    busy = [record for record in keys if record is not None]
    if not busy:
        return Outlook("run", "it runs at once: its lock is free", ["key"])
    if options.from_ == "publish" and not options.pending and _is_duplicate(task, busy, len(keys)):
        return _duplicate(options, busy[0])
    if options.until == "start":
        return Outlook(
            "run", 'it runs: with lock_until="start" it holds no lock while it runs', ["until", "from"]
        )
    return _busy(task, options, busy[0])


def reasons(task: Any, app: Celery, options: Options, names: Sequence[str]) -> list[Reason]:
    """Each option with its value, and where the value comes from."""
    return [Reason(f"lock_{name}", _shown(options, name), _source(task, app, name)) for name in names]


def _is_duplicate(task: Any, busy: list[LockRecord], keys: int) -> bool:
    """Whether publishing would see a duplicate, for a call without canvas and callbacks."""
    same = len({record.owner.task_id for record in busy}) == 1 and busy[0].task == task.name
    return same and len(busy) == keys


def _duplicate(options: Options, record: LockRecord) -> Outlook:
    because = ["from", "pending", "duplicate"] if record.pending else ["from", "duplicate"]
    if options.duplicate == "raise":
        text = f"it is not published: apply_async raises DuplicateTask, which names {holder(record)}"
    elif options.duplicate == "replace" and record.pending:
        text = f"it takes the place of {holder(record)}, which ends as REVOKED"
    else:
        text = f"it is not published: apply_async returns the result of {holder(record)}"
    return Outlook("duplicate", text, because)


def _busy(task: Any, options: Options, record: LockRecord) -> Outlook:
    first = f"it waits in place for up to {duration(options.wait)}, and then " if options.wait else "it "
    because = ["wait", "busy"] if options.wait else ["busy"]
    if callable(options.busy):
        return Outlook("ask", f"{first}does what {_shown(options, 'busy')} returns", because)
    if options.busy in _ENDS:
        return Outlook(options.busy, first + _ENDS[options.busy], because)
    if options.max_attempts == 1:
        return Outlook("fail", first + _ENDS["fail"], [*because, "max_attempts"])
    if options.busy == "replace" and record.task == task.name and record.state == HELD:
        text = (
            f"{first}ends {holder(record)}, and every older call that waits; it starts when that run is gone"
        )
        return Outlook("replace", text, because)
    behind = f", behind {counted(record.waiters, 'waiter')}" if record.waiters else ""
    text = f"{first}waits under its own task id{behind}; {_next_try(options, record.lease_left)}"
    bound = (
        "" if options.max_attempts is None else f"; after {options.max_attempts} attempts it raises LockBusy"
    )
    return Outlook("retry", text + bound, [*because, "backoff", "backoff_max", "jitter", "max_attempts"])


_ENDS = {
    "skip": "is skipped: its state becomes REVOKED, and its result names the holder",
    "fail": "fails with LockBusy",
    "reject": "is rejected, to the dead-letter exchange if there is one",
}


def _next_try(options: Options, lease_left: float) -> str:
    """A release wakes the task; otherwise the backoff, at most the rest of the lease, ends its wait."""
    first = duration(min(options.backoff, options.backoff_max, lease_left))
    most = "at most " if options.jitter else ""
    backoff = f"it retries after {most}{first}, later after {most}{duration(options.backoff_max)}"
    return f"the release wakes it; without a wake-up {backoff}" if CAN_BE_WOKEN else backoff


def _shown(options: Options, name: str) -> str:
    value = getattr(options, "from_" if name == "from" else name)
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}()"
    if name == "key" and value is None:
        return "the task's name and a digest of all arguments"
    return repr(value)


def _source(task: Any, app: Celery, name: str) -> str:
    missing = object()
    if inspect.getattr_static(task, f"lock_{name}", missing) is not missing:
        return "task"
    return f"setting rlock_{name}" if app.conf.get(f"rlock_{name}", missing) is not missing else "default"
