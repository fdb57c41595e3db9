"""What would happen to a call of a task now, and which options say so."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import VERSION

from celery_rlock.core.entry import Entry
from celery_rlock.ops.rows import who
from celery_rlock.ops.wording import counted, duration
from celery_rlock.options import Options

if TYPE_CHECKING:
    from celery import Celery


#: Older ones schedule a retry where nobody can reach it.
_WAKES = VERSION >= (5, 7)


class Reason(NamedTuple):
    option: str
    value: str
    source: str  # the task, a setting, or the default


class Outlook(NamedTuple):
    action: str  # run, retry, skip, fail, reject, ask, duplicate
    text: str
    reasons: list[str]  # names of options, without lock_


def outlook(task: Any, options: Options, keys: Sequence[Entry | None]) -> Outlook:
    """Of a call whose keys are held so (None: free) when it is published, and when it runs."""
    busy = [entry for entry in keys if entry is not None]
    if not busy:
        return Outlook("run", "it runs at once: nobody holds what it needs", ["key"])
    if options.from_ == "publish" and _is_duplicate(task, busy, len(keys)):
        return _duplicate(options, busy[0])
    if options.until == "start":
        return Outlook("run", 'it runs: lock_until="start" holds nothing while it does', ["until", "from"])
    return _busy(options, busy[0])


def reasons(task: Any, app: Celery, options: Options, names: Sequence[str]) -> list[Reason]:
    """Each option with its value, and where that comes from."""
    return [Reason(f"lock_{name}", _shown(options, name), _source(task, app, name)) for name in names]


def _is_duplicate(task: Any, busy: list[Entry], keys: int) -> bool:
    """As publish.py sees it, for a call with neither canvas nor callback."""
    same = len({entry.owner.task_id for entry in busy}) == 1 and busy[0].task == task.name
    return same and len(busy) == keys


def _duplicate(options: Options, holder: Entry) -> Outlook:
    because = ["from", "duplicate"]
    if options.duplicate == "raise":
        return Outlook("duplicate", f"it is not published: DuplicateTask names {who(holder)}", because)
    text = f"it is not published: apply_async returns the result of {who(holder)}"
    return Outlook("duplicate", text, because)


def _busy(options: Options, holder: Entry) -> Outlook:
    first = f"it waits up to {duration(options.wait)} in place, and then " if options.wait else "it "
    because = ["wait", "busy"] if options.wait else ["busy"]
    if callable(options.busy):
        return Outlook("ask", f"{first}does what {_shown(options, 'busy')} returns", because)
    if options.busy != "retry":
        return Outlook(options.busy, first + _ENDS[options.busy], because)
    if options.max_attempts == 1:
        return Outlook("fail", first + _ENDS["fail"], [*because, "max_attempts"])
    behind = f", behind {counted(holder.waiters, 'waiter')}" if holder.waiters else ""
    text = f"{first}waits under its own id{behind}; {_next_try(options, holder.lease_left)}"
    bound = (
        "" if options.max_attempts is None else f"; after {options.max_attempts} attempts it raises LockBusy"
    )
    return Outlook("retry", text + bound, [*because, "backoff", "backoff_max", "jitter", "max_attempts"])


_ENDS = {
    "skip": "is skipped: state REVOKED, with the holder's name",
    "fail": "fails with LockBusy",
    "reject": "is rejected, to the dead-letter exchange if there is one",
}


def _next_try(options: Options, lease_left: float) -> str:
    """A release wakes it; the backoff, never longer than the holder's lease, is for when none does."""
    first = duration(min(options.backoff, options.backoff_max, lease_left))
    most = "at most " if options.jitter else ""
    backoff = f"it retries in {most}{first} at first and {most}{duration(options.backoff_max)} in the end"
    return f"the release wakes it, else {backoff}" if _WAKES else backoff


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
