"""What callers may rely on with `lock_pending` and `lock_duplicate="replace"`."""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_rlock.server.owner import QUEUED
from tests.interleavings.clients import KEYS
from tests.interleavings.virtual_server import NOW, Key, Request
from tests.interleavings.world import Spec, Violation, World


class PendingRecord(NamedTuple):
    """A pending call whose place has not ended."""

    task_id: str
    order: int
    is_queued: bool


def pending_of(key: Key | None) -> tuple[PendingRecord, ...]:
    if key is None:
        return ()
    found = []
    for task_id, record in zip(key.values[::2], key.values[1::2], strict=True):
        ends, _, order, is_queued, *_ = record.split(" ", 6)
        if int(ends) > NOW:
            found.append(PendingRecord(task_id, int(order), is_queued == "1"))
    return tuple(found)


def logged(world: World, word: str) -> World:
    return world._replace(log=tuple(sorted({*world.log, word})))


def published(message: str) -> str:
    return f"published {message}"


def began(message: str) -> str:
    return f"began {message}"


def check_pending_request(specs: tuple[Spec, ...], before: World, request: Request, reply: Any) -> None:
    """What a caller may rely on when the server has said that a call is pending, or superseded."""
    if request.verb == "reserve" and reply[0] == 0 and reply[3].startswith(f"{QUEUED}:"):
        told = reply[3].removeprefix(f"{QUEUED}:")
        waits = [
            word.removeprefix("published ")
            for word in before.log
            if word.startswith("published ")
            and word.endswith(f":{told}")
            and began(word.removeprefix("published ")) not in before.log
        ]
        if not waits:
            raise Violation(f"a caller was told that {told} is queued, which is not published or has begun")
    orders = {one.task_id: one for one in pending_of(before.key(KEYS.pending))}
    if request.verb == "queue" and reply[0] == 2:
        mine, older = orders.get(request.args[0]), orders.get(request.args[5])
        if mine is not None and older is not None and older.order > mine.order:
            raise Violation(f"{mine.task_id} supersedes {older.task_id}, which was called later")
    if request.verb == "unqueue" and request.args[2] == "1" and reply[0] == 1:
        others = [one for one in orders.values() if one.is_queued and one.task_id != request.args[0]]
        mine = orders.get(request.args[0])
        limit = max(spec.options.pending_places for spec in specs)
        if mine is not None and len(others) >= limit and all(one.order < mine.order for one in others):
            raise Violation(f"{mine.task_id} begins, and the older {others[0].task_id} keeps its place")


def each_call_ran(world: World) -> str | None:
    """Each call that was published, or told that another one is queued, has had its run."""
    if any(word.startswith("lost") for word in world.log):
        return None
    later = dict(word.split(" ")[1::2] for word in world.log if word.startswith("superseded"))
    began = {word.rpartition(":")[2] for word in world.log if word.startswith("began")}
    for word in world.log:
        if word.startswith(("published", "relied on")):
            task_id = word.rpartition(" ")[2].rpartition(":")[2]
            if task_id in later and task_id in began:
                return f"{task_id} is superseded, and has run"
            while task_id in later:
                task_id = later[task_id]
            if task_id not in began:
                return f"{word}, and {task_id} has not run"
    return None
