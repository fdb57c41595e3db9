"""Calls with `lock_pending` or `lock_duplicate="replace"`: their publishers and runs, as state machines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from celery_rlock.core.lease import Lease
from celery_rlock.core.pending_call import PendingCall
from celery_rlock.errors import LockUnavailable
from celery_rlock.publishing.message import Message, is_duplicate
from celery_rlock.publishing.pending import _pending_request
from celery_rlock.running.pending_place import PendingPlace
from celery_rlock.server.replies import Busy, Queued, Reserved
from tests.interleavings.clients import KEYS, Interrupted, Replay, task_lock_of
from tests.interleavings.explorer import Explorer, Move
from tests.interleavings.pending_checks import began, logged, pending_of, published
from tests.interleavings.processes import Kind, Parked
from tests.interleavings.world import Call, Process, Spec, Violation, World

PENDING_TTL = 8  #: seconds for which a published call keeps its place
_ASK_AGAIN = 1_000  #: fewer questions than a publisher asks, and so fewer states
_TASK: Any = SimpleNamespace(name="t", app=None)


def _message(spec: Spec) -> Message:
    return Message((), {}, spec.owner.task_id, {})


def _pending_call(replay: Replay, spec: Spec, process: Process) -> PendingCall:
    request = _pending_request(_TASK, spec.options, _message(spec))
    named = request._replace(attempt=f"publication-{spec.name}", worker=spec.name)
    call = PendingCall(replay.server, [KEYS], named)
    call._reserved = dict.fromkeys([KEYS], process.memory[0]) if process.memory else {}
    return call


def reserve(
    replay: Replay, lease: Lease, spec: Spec, process: Process
) -> tuple[list[Busy] | None, tuple[Reserved, ...]]:
    call = _pending_call(replay, spec, process)
    busy = call._try_to_reserve()
    return busy, tuple(call._reserved.values())


def queue(replay: Replay, lease: Lease, spec: Spec, process: Process) -> Queued:
    [(_, outcome)] = _pending_call(replay, spec, process).queue(PENDING_TTL)
    return outcome


def withdraw(replay: Replay, lease: Lease, spec: Spec, process: Process) -> None:
    _pending_call(replay, spec, process).withdraw()


def _place_of(replay: Replay, spec: Spec) -> PendingPlace:
    return PendingPlace("t", spec.owner, spec.options, replay.server, [KEYS])


def begin(replay: Replay, lease: Lease, spec: Spec, process: Process) -> str:
    return _place_of(replay, spec).begin()


def look_for_later(replay: Replay, lease: Lease, spec: Spec, process: Process) -> str:
    return _place_of(replay, spec).superseded_by()


def queue_retry(replay: Replay, lease: Lease, spec: Spec, process: Process) -> None:
    _place_of(replay, spec).queue_retry(task_lock_of(lease), {KEYS.lock}, PENDING_TTL)


class PendingPublisher(Kind):
    """`apply_async` of a pending call (publishing/pending.py): reserves, publishes, is queued."""

    BODIES: ClassVar[dict[str, Any]] = {
        **Kind.BODIES,
        "reserve": reserve,
        "queue": queue,
        "withdraw": withdraw,
    }

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        if process.call("main"):
            return []
        if process.step == "ready" or (process.step == "in doubt" and process.alarm == 0):
            what = "calls apply_async" if process.step == "ready" else "asks again for a place"
            return [Move(f"{spec.name} {what}", 7, lambda: self._reserve(explorer, world, index))]
        if process.step != "publishing":
            return []
        failing = world.with_process(index, process._replace(step="failing"))
        failed = world.with_process(index, process._replace(step="failed"))
        return [
            Move(f"{spec.name} publishes", 7, lambda: self._publish(explorer, world, index)),
            Move(
                f"{spec.name} cannot publish",
                99,
                lambda: explorer.start(failing, index, "main", "withdraw", ()) if process.memory else failed,
                fault=True,
            ),
        ]

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        assert error is None or isinstance(error, (LockUnavailable, Interrupted)), error
        if call.what == "withdraw":
            return world.with_process(index, process._replace(step="failed", memory=()))
        if call.what == "queue":
            world = world.with_process(index, process._replace(step="returned", memory=()))
            return world if error is not None else self._queued(world, spec, result)
        if isinstance(error, Interrupted):
            return world.with_process(index, process._replace(step="failed"))
        busy, reserved = result or ([], ())  # without an answer the call is published without a place
        if busy is None:
            return world.with_process(index, process._replace(step="in doubt", alarm=_ASK_AGAIN))
        if busy and is_duplicate(_TASK, _message(spec), busy):
            world = world.with_process(index, process._replace(step="returned"))
            return logged(world, f"relied on {busy[0].owner.task_id}")
        return world.with_process(index, process._replace(step="publishing", memory=reserved))

    def is_inside(self, process: Process) -> bool:
        return False

    def has_ended(self, process: Process) -> bool:
        return process.step in {"returned", "failed"}

    def check(self, explorer: Explorer, world: World, index: int) -> None:
        spec = explorer.specs[index]
        queued = [one.task_id for one in pending_of(world.key(KEYS.pending)) if one.is_queued]
        if len(queued) > spec.options.pending_places:
            raise Violation(f"too many calls are pending: {queued}")

    def _reserve(self, explorer: Explorer, world: World, index: int) -> World:
        process = world.processes[index]._replace(step="reserving", alarm=None)
        return explorer.start(world.with_process(index, process), index, "main", "reserve", ())

    def _publish(self, explorer: Explorer, world: World, index: int) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        world = logged(world, published(spec.owner.message))
        if not process.memory:
            return world.with_process(index, process._replace(step="returned"))
        world = world.with_process(index, process._replace(step="queueing"))
        return explorer.start(world, index, "main", "queue", ())

    def _queued(self, world: World, spec: Spec, outcome: Queued) -> World:
        task_id = spec.owner.task_id
        if outcome.older:
            return logged(world, f"superseded {outcome.older} by {task_id}")
        if outcome.later:
            return logged(world, f"superseded {task_id} by {outcome.later}")
        is_quiet = not world.faults and not world.delays
        if is_quiet and not outcome.is_queued and began(spec.owner.message) not in world.log:
            raise Violation(f"{task_id} is published and waits, and has no place")
        return world


class PendingRun(Parked):
    """The run of a pending call: it waits in its worker, gives up its place, and only then begins."""

    BODIES: ClassVar[dict[str, Any]] = {
        **Parked.BODIES,
        "begin": begin,
        "look for later": look_for_later,
        "queue retry": queue_retry,
    }

    def first(self, spec: Spec) -> Process:
        return Process("undelivered")

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        if process.step != "undelivered":
            return super().moves(explorer, world, index)
        if published(spec.owner.message) not in world.log:
            return []
        ready = world.with_process(index, process._replace(step="ready"))
        return [Move(f"{spec.name} is delivered", 7, lambda: ready)]

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        assert error is None or isinstance(error, (LockUnavailable, Interrupted)), error
        if call.what == "enter" and error is None:
            if result is None:
                inside = process._replace(signalled=False, alarm=None, registered=False)
                return explorer.start(world.with_process(index, inside), index, "main", "begin", ())
            process = process._replace(since=process.since or result.since)
            return explorer.start(world.with_process(index, process), index, "main", "look for later", ())
        if call.what == "begin":
            if error is None and not result:
                return self._run(explorer, world, index)
            note = "again" if error is not None else f"superseded {spec.owner.task_id} by {result}"
            world = world.with_process(index, process._replace(notes=(note,)))
            return explorer.start(world, index, "main", "leave", ())
        if call.what == "look for later":
            if result:
                world = logged(world, f"superseded {spec.owner.task_id} by {result}")
                return world.with_process(index, process._replace(step="ended", since=0))
            return self._ask(explorer, world, index)
        if call.what == "queue retry":
            return world.with_process(index, self._next(spec, process))
        if call.what == "leave" and process.notes:
            [note] = process.notes
            if note == "again":  # published again (lock_unavailable="retry")
                return world.with_process(index, process._replace(step="ready", position=0, notes=()))
            return logged(world.with_process(index, process._replace(step="ended", since=0, notes=())), note)
        return super().finished(explorer, world, index, call, result, error)

    def died(self, explorer: Explorer, world: World, index: int, before: Process) -> World:
        message = explorer.specs[index].owner.message
        return world if began(message) in world.log else logged(world, f"lost {message}")

    def has_ended(self, process: Process) -> bool:
        return process.step in {"ended", "undelivered"}

    def check(self, explorer: Explorer, world: World, index: int) -> None:
        """Each queued call is published, and has not begun."""
        task_id = explorer.specs[index].owner.task_id
        if not any(one.is_queued and one.task_id == task_id for one in pending_of(world.key(KEYS.pending))):
            return
        messages = [one.owner.message for one in explorer.specs if one.owner.task_id == task_id]
        if not any(published(message) in world.log for message in messages):
            raise Violation(f"{task_id} is queued, and not published")
        if not any(published(one) in world.log and began(one) not in world.log for one in messages):
            raise Violation(f"{task_id} is queued after it has begun")

    def _begin(self, explorer: Explorer, world: World, index: int, step: str) -> World:
        if step != "retry":
            return super()._begin(explorer, world, index, step)
        owner = explorer.specs[index].owner
        world = logged(world, published(owner._replace(delivery=f"{owner.delivery}.1.0").message))
        world = world.with_process(index, world.processes[index]._replace(step="busy"))
        return explorer.start(world, index, "main", "queue retry", ())

    def _run(self, explorer: Explorer, world: World, index: int) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        world = logged(world, began(spec.owner.message))
        return world.with_process(index, self._next(spec, process._replace(since=0)))
