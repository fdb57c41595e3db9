"""`celery inspect locks` and `celery control rlock_release KEY`, in the worker's parent process.

They answer from what the parent knows and ask no server, so that the worker's loop never waits for Redis: a
locked task that runs here holds its keys, or is about to (with `lock_wait`), or has just left them; what an
`RLock` holds inside a task only Redis knows, see `celery rlock ls --worker`. A `lock_key` that is a callable
is called for each answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import control_command, inspect_command

from celery_rlock import settings
from celery_rlock.core.entry import key_in
from celery_rlock.core.log import logger
from celery_rlock.core.name import Name, Owner
from celery_rlock.waiter import ATTEMPTS, SINCE, WAITS_FOR, is_waiter
from celery_rlock.worker.errands import errands

_RELEASED = 1


@inspect_command(signature="[KEY]", args=[("key", str)])
def locks(state: Any, key: str | None = None, **_: Any) -> dict[str, Any]:
    """List what runs under a lock in this worker, and what waits for one."""
    held = (row for request in _active() for row in _rows_of_run(request))
    waiting = (row for request in _scheduled(state) for row in _rows_of_waiter(request))
    return {"held": _of_key(held, key), "waiting": _of_key(waiting, key)}


@control_command(signature="KEY", args=[("key", str)])
def rlock_release(state: Any, key: str, **_: Any) -> dict[str, str]:  # noqa: ARG001 - Celery's interface
    """Release a lock that a task holds which runs in this worker."""
    found = [
        (request, name) for request in _active() for name in _names(request) if key in {name.key, name.lock}
    ]
    if not found:
        return {"ok": f"nothing that runs here has the key {key!r}"}
    for request, name in found:
        errands.add(f"release lock {name.key!r} of {request.id}", partial(_release, request, name))
    owners = ", ".join(str(request.rlock_owner) for request, _ in found)
    return {"ok": f"{key!r} is being released, if it is held by {owners}"}


def _release(request: Any, name: Name) -> None:
    """Off the loop. An attempt that only looked whether the lock is free holds nothing."""
    owner: Owner = request.rlock_owner
    if settings.server(request.app).release(name, owner, 0) == _RELEASED:
        request.rlock_released = {*_released(request), name.lock}
        logger.warning("lock %r of %s is released by remote control, while it runs", name.key, owner)


def _active() -> list[Any]:
    return [request for request in list(worker_state.active_requests) if hasattr(request, "rlock_names")]


def _scheduled(state: Any) -> Iterator[Any]:
    """The waiters among what Celery's timer has; `celery inspect scheduled` finds them in the same way."""
    for waiting in list(state.consumer.timer.schedule.queue):
        args = waiting.entry.args
        request: Any = args[0] if args else None
        if hasattr(request, "rlock_names") and is_waiter(request.request_dict):
            yield request


def _names(request: Any) -> list[Name]:
    try:
        names: list[Name] = request.rlock_names()
    except Exception as error:  # noqa: BLE001 - a key that cannot be made ends its task, not this answer
        logger.debug("no key for %s: %r", request.id, error)
        return []
    return [name for name in names if name.lock not in _released(request)]


def _released(request: Any) -> set[str]:
    """What was taken from this run by remote control."""
    released: set[str] = getattr(request, "rlock_released", set())
    return released


def _rows_of_run(request: Any) -> list[dict[str, Any]]:
    about = {"owner": str(request.rlock_owner), "since": request.time_start, "pid": request.worker_pid}
    return [{**_row(request, name), **about} for name in _names(request)]


def _rows_of_waiter(request: Any) -> list[dict[str, Any]]:
    headers = request.request_dict
    lock = headers.get(WAITS_FOR)
    names = (
        [Name.around(key_in(lock, settings.prefix(request.app))[0], lock)] if lock else _names(request)[:1]
    )
    about = {
        "owner": str(request.rlock_owner),
        "since": float(headers.get(SINCE) or 0) / 1_000_000 or None,
        "attempts": max(int(headers.get(header) or 0) for header in ATTEMPTS),
    }
    return [{**_row(request, name), **about} for name in names]


def _row(request: Any, name: Name) -> dict[str, Any]:
    return {"key": name.key, "redis_key": name.lock, "task": request.name, "id": request.id}


def _of_key(rows: Iterable[dict[str, Any]], key: str | None) -> list[dict[str, Any]]:
    return [row for row in rows if key is None or key in {row["key"], row["redis_key"]}]
