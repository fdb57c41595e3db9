"""What became of a cell, in comparable form: the notes of its processes, its events and stored results."""

from __future__ import annotations

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from celery import states

from tests.conformance.notes import ACKS, TWINS, notes_key
from tests.conformance.shapes import Shape

#: Signals that end an execution, or a task that is never executed.
ENDS = {"task_postrun", "task_revoked"}
PUBLISHING = {"before_task_publish", "after_task_publish"}
#: Notes about a whole task, not about one execution of it.
BESIDE = {"", "worker", "driver", "sentry", "otel", "errback"}

_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_TWIN = re.compile(rf"\b({'|'.join(ACKS)})\.({'|'.join(TWINS)})\.")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
#: The lock binds the arguments before Celery does, so that error's text is Python's other one.
_WRONG_ARGUMENTS = re.compile(r"TypeError\(\\\".*?\\\",?\)")
_EVENT_FIELDS = ("name", "args", "kwargs", "retries", "result", "exception")
_EVENT_FIELDS += ("terminated", "expired", "requeue")
_META_FIELDS = ("status", "result", "args", "kwargs", "retries", "name", "queue")


class Sources(NamedTuple):
    """Where to look for what a run did."""

    events: Callable[[str], list[dict[str, Any]]]  #: the events of a task id
    meta: Callable[[str], Mapping[str, Any]]  #: the stored result of a task id


def read_notes(store: Any, run: str, cell: str) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in store.lrange(notes_key(run, cell), 0, -1)]


def is_over(notes: list[dict[str, Any]], ack: str, shape: Shape) -> bool:
    """Whether as many executions have ended as the shape has. Busy attempts do not count."""
    if any((note.get("result") or {}).get("error") for note in notes if note["kind"] == "published"):
        return True
    return ends(notes) >= shape.wanted(ack) and any(note["kind"] == "published" for note in notes)


def ends(notes: list[dict[str, Any]]) -> int:
    return sum(note["kind"] in ENDS and not _waits(note) for note in notes)


def _waits(note: Mapping[str, Any]) -> bool:
    """Whether an attempt ended here because the task waits for its lock, or was dropped as a redelivery."""
    return note["kind"] == "task_postrun" and str(note["result"]).startswith(("Waiting(", "Dropped("))


def outcome(sources: Sources, notes: list[dict[str, Any]], shape: Shape) -> dict[str, Any]:
    """Everything that the twins must have in common."""
    roles = defaultdict(set)  # a task that is replaced has the id of its replacement
    for note in notes:
        if note.get("role"):
            roles[note["id"]].add(note["role"])
    beside: dict[str, list[Any]] = defaultdict(list)
    executions: dict[str, list[Any]] = defaultdict(list)
    published = []
    for note in notes:
        if note["kind"] == "published":
            continue
        what = _scrubbed({name: note[name] for name in note if name not in {"id", "at"}})
        if note["kind"] in PUBLISHING and (not note["at"] or not shape.is_ordered):
            published.append(what)
        elif note["at"] in BESIDE and not shape.is_ordered:
            what.pop("spans", None)  # one of them is of the next task
            beside[note["id"]].append(what)
        elif note["at"] in BESIDE:  # also from the worker's main process, where no task runs
            beside[note["id"]].append(what)
        else:
            executions[note["at"]].append(what)
    ids = {*beside, *(place.partition("/")[0] for place in executions)}
    return {
        "published": sorted(map(_sortable, published)),
        "returned": _returned(sources, notes),
        "tasks": sorted(
            (
                {
                    "roles": sorted(roles[task_id]),
                    "executions": _executions(task_id, executions),
                    "beside": sorted(map(_sortable, beside[task_id])),
                    "stored": _stored(sources.meta(task_id)),
                    **_events(sources.events(task_id)),
                }
                for task_id in ids
            ),
            key=_sortable,
        ),
    }


def _executions(task_id: str, executions: Mapping[str, list[Any]]) -> list[Any]:
    """The executions of a task: retries and nesting of each, and what happened in it, in its order."""
    found = []
    for place, entries in executions.items():
        own_id, retries, nesting, *_ = place.split("/")
        if own_id == task_id:
            starts = [i for i, entry in enumerate(entries) if entry["kind"] == "task_prerun"] or [0]
            for start, end in pairwise([*starts, len(entries)]):
                found.append({"retries": retries, "nesting": nesting, "entries": entries[start:end]})
    return sorted(found, key=lambda execution: (execution["nesting"], execution["retries"]))


def _stored(meta: Mapping[str, Any]) -> Any:
    """Each worker that hears of a revocation stores it, also those that do not have the message."""
    fields = ("status", "result") if meta.get("status") == states.REVOKED else _META_FIELDS
    return _scrubbed({name: _shown(meta.get(name)) for name in fields})


def _events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The task's events in their order. Where it was delivered several times, two deliveries may overlap."""
    events = [event for event in events if event["type"].startswith("task-")]
    shown = [
        _scrubbed({"type": event["type"], **{name: event[name] for name in _EVENT_FIELDS if name in event}})
        for event in events
        if event["type"] != "task-sent"
    ]
    if sum(event["type"] == "task-received" for event in events) > 1:
        shown.sort(key=_sortable)
    return {"events": shown, "sent": sum(event["type"] == "task-sent" for event in events)}


def without_waiting(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """An outcome without what a busy lock adds: the busy attempts, their events and their state RETRY."""
    tasks = []
    for task in outcome["tasks"]:
        stored = task["stored"]
        is_final = stored["status"] not in {None, states.PENDING} and "LockBusy" not in str(stored["result"])
        tasks.append(
            {
                "roles": task["roles"],
                "executions": [one for one in task["executions"] if not _was_busy(one)],
                "errbacks": [entry for entry in task["beside"] if '"errback"' in entry],
                "stored": stored if is_final else None,
                "ends": [event for event in task["events"] if event["type"] not in _REPEATED],
            }
        )
    returned = outcome["returned"]
    is_over = returned not in {states.PENDING, states.RETRY} if isinstance(returned, str) else True
    return {"returned": returned if is_over else "not over", "tasks": sorted(tasks, key=_sortable)}


#: Events that each delivery of a message has.
_REPEATED = {"task-received", "task-started", "task-retried"}


def _was_busy(execution: Mapping[str, Any]) -> bool:
    return any(map(_waits, execution["entries"]))


def _returned(sources: Sources, notes: list[dict[str, Any]]) -> Any:
    """What the caller of the cell got: a value, an error, or a state that is not final."""
    published = [note["result"] for note in notes if note["kind"] == "published"]
    if not published:
        return "not published"
    [answer] = published
    return _scrubbed(_result(sources, answer["ids"]) if "ids" in answer else answer)


def _result(sources: Sources, ids: Any) -> Any:
    """The result that `as_tuple()` of Celery's results describes: of a task, or of all tasks of a group.

    Celery's own result objects subscribe to the backend, and complain when it is gone.
    """
    (task_id, _), members = ids
    if members is not None:
        return [_result(sources, member) for member in members]
    meta = sources.meta(task_id)
    status = meta.get("status") or states.PENDING
    return _shown(meta["result"]) if status in states.READY_STATES else status


def _shown(value: Any) -> Any:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}{value.args!r}"
    return value if isinstance(value, str | int | None) else repr(value)


def _scrubbed(value: Any) -> Any:
    """Without ids, addresses and the names of the twins."""
    text = json.dumps(value, sort_keys=True, default=repr)
    text = _WRONG_ARGUMENTS.sub("TypeError()", text)
    return json.loads(_ADDRESS.sub("0x", _ID.sub("ID", _TWIN.sub("TWIN.", text))))


def _sortable(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def difference(plain: Any, twin: Any) -> str:
    """The lines in which two outcomes differ."""
    texts = [json.dumps(one, indent=1, sort_keys=True, default=repr).splitlines() for one in (plain, twin)]
    return "\n".join(difflib.unified_diff(*texts, "plain", "locked", lineterm="", n=4))
