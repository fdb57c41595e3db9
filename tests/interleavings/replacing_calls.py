"""Calls with `lock_busy="replace"`, as state machines."""

from __future__ import annotations

from typing import Any, ClassVar

from celery_rlock.core.lease import Lease
from celery_rlock.core.waiting import _KEEP_PLACE
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Replacement
from tests.interleavings.clients import KEYS, Interrupted, Replay
from tests.interleavings.explorer import A_LONG_RUN, Explorer, Move
from tests.interleavings.processes import Parked
from tests.interleavings.world import Call, Process, Spec, Violation, World


def replace(replay: Replay, lease: Lease, spec: Spec, process: Process, holder: str) -> Replacement:
    owner, task_id = Owner.of_field("", holder), spec.owner.task_id
    return replay.server.replace(KEYS, owner, "t", task_id, process.since, _KEEP_PLACE, comes_again=False)


class ReplacingCall(Parked):
    """A call that ends the run it finds, and waits until that is gone (running/replaced.py).

    It waits in its worker (worker/parked.py). While it runs, each renewal may tell it that a newer call
    replaces it.
    """

    BODIES: ClassVar[dict[str, Any]] = {**Parked.BODIES, "replace": replace}

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        moves = super().moves(explorer, world, index)
        if process.step == "ready" and process.hold.depth and not process.notes:
            return [move._replace(rank=A_LONG_RUN) for move in moves]
        if process.step == "parked" and process.alarm == 0 and not process.signalled:
            process = process._replace(step="looking", alarm=None, registered=False)
            look = world.with_process(index, process)
            start = lambda: explorer.start(look, index, "main", "give_up", ())  # noqa: E731
            return [Move(f"{spec.name} looks by itself", 2, start)]
        return moves

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        assert error is None or isinstance(error, (LockUnavailable, Interrupted)), error
        if call.what == "give_up" and process.step == "looking":
            return self._start(explorer, world, index)
        if call.what == "enter" and error is None:
            if result is not None:
                process = process._replace(since=process.since or result.since)
                world = world.with_process(index, process)
                return explorer.start(world, index, "main", "replace", (result.owner.field,))
            process = process._replace(signalled=False, alarm=None, registered=False)
            world = world.with_process(index, process)
            if process.since:
                return explorer.start(world, index, "main", "replace", (spec.owner.field,))
            return world.with_process(index, self._next(spec, process))
        if call.what == "replace":
            if error is None and result.newer:
                if not process.hold.depth:
                    return _end_as_replaced(explorer, world, index, result.newer)
                world = world.with_process(index, process._replace(notes=(result.newer,)))
                return explorer.start(world, index, "main", "leave", ())
            if process.hold.depth:
                return world.with_process(index, self._next(spec, process))
            return self._ask(explorer, world, index)
        if call.what == "leave":
            if process.notes:
                return _end_as_replaced(explorer, world, index, process.notes[0])
            world = world._replace(log=tuple(sorted((*world.log, f"ran {spec.owner.task_id}"))))
        return super().finished(explorer, world, index, call, result, error)

    def is_replaced(self, explorer: Explorer, world: World, index: int, by: str) -> World:
        process = world.processes[index]
        for spec, newer in zip(explorer.specs, world.processes, strict=True):
            if spec.owner.task_id == by and newer.since and process.hold.token >= newer.since:
                raise Violation(f"{by} ends a run that began after its call")
        if process.step != "ready":  # its run has returned
            return world
        return world.with_process(index, process._replace(notes=(by,)))

    def died(self, explorer: Explorer, world: World, index: int, before: Process) -> World:
        return world._replace(log=tuple(sorted((*world.log, f"died {explorer.specs[index].owner.task_id}"))))


def _end_as_replaced(explorer: Explorer, world: World, index: int, by: str) -> World:
    spec, process = explorer.specs[index], world.processes[index]
    for other, newer in zip(explorer.specs, world.processes, strict=True):
        if other.owner.task_id == by and 0 < newer.since <= process.since:
            raise Violation(f"{spec.owner.task_id} is replaced by {by}, which was called earlier")
    ended = process._replace(step="ended", notes=(), alarm=None, registered=False, renewals=0)
    world = world.with_process(index, ended)
    return world._replace(log=tuple(sorted((*world.log, f"replaced {spec.owner.task_id} by {by}"))))


def the_newest_ran(world: World) -> str | None:
    """Each call has run, or was replaced by one that has."""
    if any(word.startswith("died") for word in world.log):
        return None
    later = dict(word.split(" ")[1::2] for word in world.log if word.startswith("replaced"))
    for task_id in later:
        newest = task_id
        while newest in later:
            newest = later[newest]
        if f"ran {newest}" not in world.log:
            return f"{task_id} was replaced, and {newest} has not run"
    return None
