"""Deliveries of a task's message, and its publisher, as state machines."""

from __future__ import annotations

from typing import Any, ClassVar

from celery_rlock.core.lease import Lease
from celery_rlock.publishing import unique
from celery_rlock.server.owner import QUEUED
from celery_rlock.server.replies import Busy, RedeliveryReply, Successor
from tests.interleavings.clients import KEYS, Interrupted, Replay, task_lock_of
from tests.interleavings.explorer import Explorer, Move, fresh_attempt
from tests.interleavings.processes import Kind
from tests.interleavings.world import Call, Process, Spec, World

QUEUE_TTL = 5_000  #: how long a published task keeps its key
_BACKOFF = 500


def enter_task(replay: Replay, lease: Lease, spec: Spec, process: Process) -> Busy | None:
    return task_lock_of(lease, spec.limit).enter(spec.ttl / 1000, hold=spec.hold / 1000)


def leave_early(replay: Replay, lease: Lease, spec: Spec, process: Process) -> bool:
    """The `finally` around `run()`. Returns whether it has left."""
    lock = task_lock_of(lease, is_used=_has_run(process))
    if spec.retries:
        lock.successors = {KEYS.lock: Successor(QUEUED, QUEUE_TTL / 1000)}
    lock.leave(early=True)
    return not lock.entered


def leave_ended(replay: Replay, lease: Lease, spec: Spec, process: Process) -> None:
    """`task_postrun`: how the task ended is known. It has not ended if its message is published again."""
    lock = task_lock_of(lease, is_used=_has_run(process))
    if spec.retries:
        lock.successors = {KEYS.lock: Successor(QUEUED, QUEUE_TTL / 1000)}
    lock.leave(ended="unavailable" not in process.notes)


def _has_run(process: Process) -> bool:
    return not {"dropped", "unavailable"} & {*process.notes}


def ask_redelivery(replay: Replay, lease: Lease, spec: Spec, process: Process) -> RedeliveryReply:
    return task_lock_of(lease).redelivery(mark=True)


def announce(replay: Replay, lease: Lease, spec: Spec, process: Process) -> None:
    """The worker's parent process has received a redelivered message (worker/request.py)."""
    replay.server.mark_unacked(KEYS, spec.owner, redelivered=True)
    replay.server.redelivery(KEYS, spec.owner)


class Delivery(Kind):
    """A delivery of a task's message, from the broker to the acknowledgement (running/acquire.py)."""

    BODIES: ClassVar[dict[str, Any]] = {
        **Kind.BODIES,
        "enter": enter_task,
        "leave early": leave_early,
        "leave": leave_ended,
        "redelivery": ask_redelivery,
        "ask at end": ask_redelivery,
        "announce": announce,
    }

    def first(self, spec: Spec) -> Process:
        return Process("undelivered" if spec.after is not None else "ready")

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        name, to = spec.name, lambda step: lambda: world.with_process(index, process._replace(step=step))
        if process.step in {"undelivered", "overdue"}:
            return self._delivery(explorer, world, index)
        if process.call("main"):
            return []
        if process.step == "ready" or (process.step == "backing off" and process.alarm == 0):
            return [Move(f"{name} wants to enter", 7, lambda: self._go(explorer, world, index, "enter"))]
        if process.step == "running":
            if self._is_overdue(explorer, world, index):  # it keeps the lock until its end is known
                returned = process._replace(step="ending", notes=(*process.notes, "overdue"))
                return [Move(f"{name}'s run returns", 7, lambda: world.with_process(index, returned))]
            return [Move(f"{name}'s run returns", 7, lambda: self._go(explorer, world, index, "leave early"))]
        if process.step == "ending":
            if process.hold.depth and "overdue" in process.notes:
                # A run that took so long marks its lock first, so that its release tells its end.
                ask = lambda: self._go(explorer, world, index, "ask at end")  # noqa: E731
                return [Move(f"{name}'s result is stored", 7, ask)]
            return [Move(f"{name}'s result is stored", 7, lambda: self._end(explorer, world, index))]
        if process.step == "done":
            return [Move(f"{name} is acknowledged", 7, to("acknowledged"))]
        return []

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        if call.what == "ask at end":
            if error is not None:  # releasing.py goes on without an answer, so a redelivery may run again
                world = world.with_process(index, process._replace(notes=(*process.notes, "untold")))
            return self._end(explorer, world, index)
        if call.what == "leave early":
            lost = ("lost",) if call.before.lost or (error is not None and process.hold.lost) else ()
            return world.with_process(index, process._replace(step="ending", notes=(*process.notes, *lost)))
        if call.what == "leave":
            return self._ended(world, index)
        if error is not None:
            if process.hold.depth:  # the question about other deliveries failed
                process = process._replace(step="releasing", notes=("unavailable",))
                return explorer.start(world.with_process(index, process), index, "main", "leave early", ())
            return world.with_process(index, process._replace(step="backing off", alarm=_BACKOFF))
        if call.what == "enter":
            note = () if result is None else ("busy",)
            world = world.with_process(index, process._replace(notes=note))
            if spec.redelivered or self._is_overdue(explorer, world, index):
                return explorer.start(world, index, "main", "redelivery", ())
            result = RedeliveryReply.UNKNOWN
        process = world.processes[index]
        if result == RedeliveryReply.ENDED:
            process = process._replace(notes=("dropped",))
            world = world.with_process(index, process)
            return (
                self._go(explorer, world, index, "leave early")
                if process.hold.depth
                else self._ended(_noted(world, index), index)
            )
        if "busy" in process.notes:
            return world.with_process(index, process._replace(step="backing off", alarm=_BACKOFF, notes=()))
        return world.with_process(index, process._replace(step="running"))

    def dead(self, process: Process) -> Process:
        return Process(process.step if self.has_ended(process) else "dead", alive=False)

    def died(self, explorer: Explorer, world: World, index: int, before: Process) -> World:
        """A run that was not acknowledged may run again."""
        if "stored" not in before.notes or before.step == "acknowledged" or "ran" not in world.log:
            return world
        log = list(world.log)
        log.remove("ran")
        return world._replace(log=tuple(sorted([*log, "ran, then died"])))

    def is_inside(self, process: Process) -> bool:
        return process.step == "running"

    def has_ended(self, process: Process) -> bool:
        return process.step in {"acknowledged", "undelivered", "overdue"}

    def _is_overdue(self, explorer: Explorer, world: World, index: int) -> bool:
        """Whether half of the visibility timeout is over, so that there may be another delivery soon."""
        return any(
            spec.after == index and spec.redelivered and process.step != "undelivered"
            for spec, process in zip(explorer.specs, world.processes, strict=True)
        )

    def _delivery(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        """A message that `after` publishes is delivered then.

        A redelivery comes while the first delivery is not acknowledged: half of the visibility timeout
        passes, and then the other half. A run that returned in the first half is acknowledged in the second.
        When the first delivery is dead, the broker must redeliver.
        """
        spec, process = explorer.specs[index], world.processes[index]
        before = world.processes[spec.after or 0]
        deliver = Move(f"{spec.name} is delivered", 7, lambda: self._deliver(explorer, world, index))
        if spec.follows:
            is_published = before.step in {"ending", "done", "releasing", "acknowledged"}
            return [deliver] if is_published else []
        if before.step == "acknowledged":
            return []
        if not before.alive:
            return [deliver]
        if process.step == "undelivered":
            overdue = world.with_process(index, process._replace(step="overdue"))
            return [Move(f"{spec.name} will soon be delivered", 95, lambda: overdue)]
        is_due = "overdue" in before.notes or before.step in {"ready", "running", "backing off"}
        return [deliver._replace(rank=95)] if is_due else []

    def _deliver(self, explorer: Explorer, world: World, index: int) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        world = world.with_process(index, process._replace(step="ready"))
        return explorer.start(world, index, "listener", "announce", ()) if spec.redelivered else world

    def _go(self, explorer: Explorer, world: World, index: int, what: str) -> World:
        process = world.processes[index]
        step = "entering" if what == "enter" else "releasing"
        process = process._replace(step=step, alarm=None)
        return explorer.start(world.with_process(index, process), index, "main", what, ())

    def _end(self, explorer: Explorer, world: World, index: int) -> World:
        """The second release, if the first one came too early."""
        process = world.processes[index]
        if "unavailable" not in process.notes:
            world = _noted(world, index)
        if process.hold.depth:
            return explorer.start(world, index, "main", "leave", ())
        return self._ended(world, index)

    def _ended(self, world: World, index: int) -> World:
        process = world.processes[index]
        if "unavailable" in process.notes:  # published again
            return world.with_process(index, process._replace(step="backing off", alarm=_BACKOFF, notes=()))
        return world.with_process(index, process._replace(step="done"))


def _noted(world: World, index: int) -> World:
    """How this delivery ended is stored."""
    process = world.processes[index]
    word = (
        "dropped"
        if "dropped" in process.notes
        else "lost"
        if {"lost", "untold"} & {*process.notes}
        else "ran"
    )
    world = world.with_process(index, process._replace(notes=("stored",) if word == "ran" else ()))
    return world._replace(log=tuple(sorted((*world.log, word))))


def take_queued(replay: Replay, lease: Lease, spec: Spec, process: Process, attempt: str) -> bool:
    queued = unique._QueuedKeys(replay.server, [KEYS], spec.owner)
    queued._attempt = attempt
    return not queued.take(QUEUE_TTL / 1000, "t")


class Publisher(Kind):
    """`apply_async` with `lock_from="publish"` (publishing/unique.py): takes the key, then publishes."""

    BODIES: ClassVar[dict[str, Any]] = {**Kind.BODIES, "take": take_queued}

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        if process.call("main"):
            return []
        if process.step == "ready":
            return [Move(f"{spec.name} calls apply_async", 7, lambda: self._take(explorer, world, index))]
        if process.step == "publishing":
            return [Move(f"{spec.name} publishes", 7, lambda: self._publish(explorer, world, index))]
        return []

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        process = world.processes[index]
        if isinstance(error, Interrupted):
            return world.with_process(index, process._replace(step="failed"))
        # Without an answer the task is published without its key, and takes it when it runs.
        is_published = error is not None or result
        step = "publishing" if is_published else "duplicate"
        return world.with_process(index, process._replace(step=step))

    def is_inside(self, process: Process) -> bool:
        return False

    def has_ended(self, process: Process) -> bool:
        return process.step in {"acknowledged", "duplicate", "failed"}

    def _take(self, explorer: Explorer, world: World, index: int) -> World:
        attempt = fresh_attempt(world, index, explorer.specs[index].owner)
        world = world.with_process(index, world.processes[index]._replace(step="taking"))
        return explorer.start(world, index, "main", "take", (attempt,))

    def _publish(self, explorer: Explorer, world: World, index: int) -> World:
        world = world.with_process(index, world.processes[index]._replace(step="acknowledged"))
        return world._replace(log=tuple(sorted((*world.log, "published"))))
