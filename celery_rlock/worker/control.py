"""`celery inspect locks`, `celery control rlock_release KEY` and `rlock_end`, in the worker's parent process.

They answer from what the parent process knows and do not ask Redis, so that the worker's event loop never
waits for it. A locked task that runs here holds its keys, is about to take them (with `lock_wait`), or has
just released them. Only Redis knows what an `RLock` inside a task holds: see `celery rlock ls --worker`. A
`lock_key` that is a callable is called for each answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import control_command, inspect_command

from celery_rlock import settings
from celery_rlock.core.background import background
from celery_rlock.errors import TaskReplaced
from celery_rlock.log import logger
from celery_rlock.options.headers import LockHeaders
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Release, ReleaseReply
from celery_rlock.worker.parked import waited_for


@inspect_command(signature="[KEY]", args=[("key", str)])
def locks(state: Any, key: str | None = None, task_id: str | None = None, **_: Any) -> dict[str, Any]:
    """List the tasks of this worker that run under a lock or wait for one."""
    active, scheduled = _active(), list(_scheduled(state))
    if task_id is not None:
        active, scheduled = _of_id(active, task_id), _of_id(scheduled, task_id)
    held = (row for request in active for row in _rows_of_run(request))
    waiting = (row for request in scheduled for row in _rows_of_waiter(request))
    answer = {"held": _of_key(held, key), "waiting": _of_key(waiting, key)}
    if task_id is not None and not active and not scheduled:
        known = [*worker_state.requests.values(), *getattr(worker_state, "scheduled_requests", ())]
        received = _of_id(known, task_id)
        answer["received"] = [{"id": request.id, "task": request.name} for request in received]
    return answer


@control_command(signature="KEY", args=[("key", str)])
def rlock_release(state: Any, key: str, **_: Any) -> dict[str, str]:  # noqa: ARG001 - Celery's interface
    """Release the lock of a task that runs in this worker."""
    found = [
        (request, redis_keys)
        for request in _active()
        for redis_keys in _keys_of(request)
        if key in {redis_keys.key, redis_keys.lock}
    ]
    if not found:
        return {"ok": f"no task that runs here has the key {key!r}"}
    for request, redis_keys in found:
        background.add(
            f"release lock {redis_keys.key!r} of {request.id}",
            partial(_release, request, redis_keys),
            first=True,
        )
    owners = ", ".join(str(request.rlock_owner) for request, _ in found)
    return {"ok": f"{key!r} is being released, if it is held by {owners}"}


@control_command(
    signature="OWNER TASK KEY BY", args=[("owner", str), ("task", str), ("key", str), ("by", str)]
)
def rlock_end(state: Any, owner: str, task: str, key: str, by: str, **_: Any) -> dict[str, str]:
    """Terminate the run of this owner, which goes on although the task with the id BY replaces it."""
    found = [request for request in _active() if str(request.rlock_owner) == owner and request.name == task]
    for request in found:
        try:
            request.rlock_end(state.consumer.pool, TaskReplaced(key, by, owner, task))
        except NotImplementedError:
            pool = type(state.consumer.pool).__module__
            logger.warning("%s goes on: the pool of this worker (%s) cannot terminate a task", owner, pool)
            return {"error": f"{owner} goes on: {pool} cannot terminate a task"}
        logger.warning("terminated %s, because task %s replaces it", owner, by)
    return {"ok": f"{owner} is terminated" if found else f"{owner} does not run here"}


def _release(request: Any, redis_keys: RedisKeys) -> None:
    """Runs on the background thread. An attempt that found the lock busy holds nothing."""
    owner: Owner = request.rlock_owner
    if settings.server(request.app).release(redis_keys, owner, Release()) == ReleaseReply.RELEASED:
        request.rlock_released = {*_released(request), redis_keys.lock}
        logger.warning(
            "lock %r of %s was released by remote control while its task runs", redis_keys.key, owner
        )


def _of_id(requests: list[Any], task_id: str) -> list[Any]:
    return [request for request in requests if request.id == task_id]


def _active() -> list[Any]:
    return [request for request in list(worker_state.active_requests) if hasattr(request, "rlock_redis_keys")]


def _scheduled(state: Any) -> Iterator[Any]:
    """The waiters in the worker's timer, found as `celery inspect scheduled` finds its tasks."""
    for waiting in list(state.consumer.timer.schedule.queue):
        args = waiting.entry.args
        request: Any = args[0] if args else None
        if hasattr(request, "rlock_headers") and request.rlock_headers.is_waiter:
            yield request


def _keys_of(request: Any) -> list[RedisKeys]:
    try:
        all_keys: list[RedisKeys] = request.rlock_redis_keys()
    except Exception as error:  # noqa: BLE001 - a bad key fails its own task, not this answer
        logger.debug("no key for %s: %r", request.id, error)
        return []
    return [redis_keys for redis_keys in all_keys if redis_keys.lock not in _released(request)]


def _released(request: Any) -> set[str]:
    """The locks of this run that remote control has released."""
    released: set[str] = getattr(request, "rlock_released", set())
    return released


def _rows_of_run(request: Any) -> list[dict[str, Any]]:
    about = {"owner": str(request.rlock_owner), "since": request.time_start, "pid": request.worker_pid}
    return [{**_row(request, redis_keys), **about} for redis_keys in _keys_of(request)]


def _rows_of_waiter(request: Any) -> list[dict[str, Any]]:
    headers: LockHeaders = request.rlock_headers
    all_keys = _keys_of(request)
    about = {
        "owner": str(request.rlock_owner),
        "since": headers.since / 1_000_000 or None,
        "attempts": headers.count(headers.counter),
    }
    return [{**_row(request, waited_for(headers.waits_for, all_keys)), **about}] if all_keys else []


def _row(request: Any, redis_keys: RedisKeys) -> dict[str, Any]:
    return {"key": redis_keys.key, "redis_key": redis_keys.lock, "task": request.name, "id": request.id}


def _of_key(rows: Iterable[dict[str, Any]], key: str | None) -> list[dict[str, Any]]:
    return [row for row in rows if key is None or key in {row["key"], row["redis_key"]}]
