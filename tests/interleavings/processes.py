"""The processes, as state machines around the shipped client code."""

from __future__ import annotations

from typing import Any, ClassVar

from celery_rlock.core.lease import Lease
from celery_rlock.core.waiting import _KEEP_PLACE, _TRY_AGAIN
from celery_rlock.errors import LockUnavailable
from celery_rlock.server.lock_server import WOKEN_TRUST_MS
from celery_rlock.server.owner import RESTING
from celery_rlock.server.replies import Busy, Place, Release, Successor
from tests.interleavings.clients import KEYS, Interrupted, Job, Replay, Unqueue
from tests.interleavings.explorer import A_LONG_RUN, Explorer, Move
from tests.interleavings.world import Call, Process, Spec, World

REST = 1_000  #: how long a key rests after a run

#: Redis may show a depth that this process has left, because it could not tell Redis.
_UNSURE = ("unsure of the depth",)


def _place(spec: Spec, process: Process) -> Place:
    return Place(KEYS, spec.waiter, process.since, _KEEP_PLACE)


def enter(replay: Replay, lease: Lease, spec: Spec, process: Process, in_line: bool) -> Busy | None:
    return lease.enter(
        spec.ttl / 1000,
        0,
        _place(spec, process) if in_line else None,
        limit=spec.limit,
        hold=spec.hold / 1000,
    )


def leave(replay: Replay, lease: Lease, *_: Any) -> bool:
    return lease.leave()


def leave_resting(replay: Replay, lease: Lease, *_: Any) -> bool:
    """`lock_hold_at_least`: the key rests."""
    return lease.leave(Release(successor=Successor(RESTING, REST / 1000)))


def renew(replay: Replay, lease: Lease, *_: Any) -> None:
    replay.renewer._renew([lease])


def background_job(replay: Replay, lease: Lease, spec: Spec, process: Process, job: Job) -> Any:
    if isinstance(job.release, Unqueue):
        return replay.server.unqueue(KEYS, job.owner.task_id, job.release.attempt)
    return replay.server.release(KEYS, job.owner, job.release)


def wake(replay: Replay, lease: Lease, spec: Spec, process: Process) -> bool:
    return replay.server.wake(KEYS, spec.waiter)


def give_up(replay: Replay, lease: Lease, spec: Spec, process: Process) -> None:
    replay.server.give_up(_place(spec, process))


class Kind:
    """What all processes have in common: a renewer, a background thread, a subscription."""

    BODIES: ClassVar[dict[str, Any]] = {"renew": renew, "release": background_job, "wake": wake}

    def first(self, spec: Spec) -> Process:
        return Process()

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        return []

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        return world

    def hears(self, explorer: Explorer, world: World, index: int, said: str) -> World:
        return world

    def dead(self, process: Process) -> Process:
        return Process("dead", alive=False)

    def died(self, explorer: Explorer, world: World, index: int, before: Process) -> World:
        return world

    def check(self, explorer: Explorer, world: World, index: int) -> None:
        """What must hold in each state, beside what holds for all kinds."""

    def is_replaced(self, explorer: Explorer, world: World, index: int, by: str) -> World:
        """A renewal has told that another task replaces this one."""
        return world

    def is_inside(self, process: Process) -> bool:
        """Whether it believes that it may do what the lock protects."""
        return process.hold.depth > 0

    def is_waiting(self, process: Process) -> bool:
        return False

    def has_ended(self, process: Process) -> bool:
        return True


class Parent(Kind):
    """A worker's parent process: it releases the lock of a child that died (worker/request.py)."""


class User(Kind):
    """A user of `RLock`, which waits in place for a busy lock (core/waiting.py)."""

    BODIES: ClassVar[dict[str, Any]] = {
        **Kind.BODIES,
        "enter": enter,
        "leave": leave,
        "rest": leave_resting,
        "give_up": give_up,
    }

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        if process.call("main"):
            return []
        if process.step == "ready":
            step = spec.program[process.position]
            rank = A_LONG_RUN if spec.renews and process.hold.depth else 7
            return [
                Move(f"{spec.name} wants to {step}", rank, lambda: self._begin(explorer, world, index, step))
            ]
        if process.step != "sleeping":
            return []
        moves = []
        if process.signalled or process.alarm == 0:
            why = "was woken" if process.signalled else "looks by itself"
            moves.append(Move(f"{spec.name} {why}", 2, lambda: self._look(explorer, world, index)))
        if not process.listening:
            moves.append(Move(f"{spec.name} subscribes again", 2, lambda: self._subscribe(world, index)))
        if spec.gives_up:
            leaving = world.with_process(
                index, process._replace(step="leaving", registered=False, alarm=None)
            )
            moves.append(
                Move(
                    f"{spec.name} stops waiting",
                    98,
                    lambda: explorer.start(leaving, index, "main", "give_up", ()),
                )
            )
        return moves

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        if call.what == "give_up":
            return world.with_process(index, _ended(process))
        if call.what in {"leave", "rest"}:
            process = process._replace(notes=_UNSURE if error is not None and process.hold.depth else ())
            return world.with_process(index, self._next(spec, process))
        in_line = call.args[0]
        if error is not None and process.hold.depth:
            # Leaves the blocks that it is still in.
            position = len(spec.program) - process.hold.depth
            process = process._replace(position=position, step="ready", notes=_UNSURE)
            return world.with_process(index, process)
        if error is not None and in_line and not isinstance(error, LockUnavailable):
            leaving = world.with_process(index, process._replace(step="leaving", registered=False))
            return explorer.start(leaving, index, "main", "give_up", ())
        if error is not None:
            assert isinstance(error, (LockUnavailable, Interrupted)), error
            if spec.tries_again:
                again = process._replace(step="ready", registered=False, signalled=False, since=0, alarm=None)
                return world.with_process(index, again)
            return world.with_process(index, _ended(process))
        if result is None:
            process = process._replace(registered=False, signalled=False, since=0, alarm=None)
            return world.with_process(index, self._next(spec, process))
        if not spec.waits:
            return world.with_process(index, _ended(process))
        if not in_line:
            process = process._replace(step="in line", since=result.since, listening=True, registered=True)
            return explorer.start(world.with_process(index, process), index, "main", "enter", (True,))
        alarm = max(1, round(1000 * min(_TRY_AGAIN, result.lease_left)))
        process = process._replace(step="sleeping", registered=True, alarm=alarm)
        return world.with_process(index, process)

    def hears(self, explorer: Explorer, world: World, index: int, said: str) -> World:
        process = world.processes[index]
        if said != "turn":
            return world
        if process.registered:
            return world.with_process(index, process._replace(registered=False, signalled=True))
        return explorer.start(world, index, "listener", "wake", ())

    def is_waiting(self, process: Process) -> bool:
        return process.step == "sleeping"

    def has_ended(self, process: Process) -> bool:
        return process.step == "ended"

    def _begin(self, explorer: Explorer, world: World, index: int, step: str) -> World:
        process = world.processes[index]._replace(step="busy")
        args = (False,) if step == "enter" else ()
        return explorer.start(world.with_process(index, process), index, "main", step, args)

    def _look(self, explorer: Explorer, world: World, index: int) -> World:
        process = world.processes[index]._replace(step="in line", signalled=False, alarm=None)
        return explorer.start(world.with_process(index, process), index, "main", "enter", (True,))

    def _subscribe(self, world: World, index: int) -> World:
        """The subscription works again, and every waiter asks, because it may have missed something."""
        return world.with_process(index, world.processes[index]._replace(listening=True, signalled=True))

    def _next(self, spec: Spec, process: Process) -> Process:
        position = process.position + 1
        if position >= len(spec.program):
            return _ended(process)
        return process._replace(step="ready", position=position)


def _ended(process: Process) -> Process:
    return process._replace(
        step="ended", position=0, registered=False, signalled=False, alarm=None, since=0, renewals=0
    )


def enter_since(replay: Replay, lease: Lease, spec: Spec, process: Process) -> Busy | None:
    return lease.enter(spec.ttl / 1000, 0, None, process.since, limit=spec.limit, hold=spec.hold / 1000)


def ask(replay: Replay, lease: Lease, spec: Spec, process: Process) -> float | Exception:
    return replay.server.wait([_place(spec, process)])[0]


def join(replay: Replay, lease: Lease, spec: Spec, process: Process) -> int | Exception:
    return replay.server.join([_place(spec, process)])[0]


def pass_on(replay: Replay, lease: Lease, spec: Spec, process: Process) -> bool:
    return replay.server.pass_on(_place(spec, process))


class Parked(User):
    """A task that waits in its worker (worker/parked.py), and then runs.

    With `saturated` its worker has no free process when its turn comes first, and passes the turn on. A
    program that begins with "join" is that of a new message, which waits before its task has asked.
    """

    BODIES: ClassVar[dict[str, Any]] = {
        **User.BODIES,
        "enter": enter_since,
        "ask": ask,
        "join": join,
        "pass_on": pass_on,
    }

    def moves(self, explorer: Explorer, world: World, index: int) -> list[Move]:
        spec, process = explorer.specs[index], world.processes[index]
        if process.call("main"):
            return []
        if process.step == "ready":
            step = spec.program[process.position]
            return [
                Move(f"{spec.name} wants to {step}", 7, lambda: self._begin(explorer, world, index, step))
            ]
        if process.step != "parked":
            return []
        moves = []
        if process.signalled:
            moves.append(Move(f"{spec.name} starts", 2, lambda: self._start(explorer, world, index)))
        elif process.alarm == 0:
            moves.append(Move(f"{spec.name} asks", 2, lambda: self._ask(explorer, world, index)))
        if not process.listening:
            moves.append(
                Move(f"{spec.name} subscribes again", 2, lambda: self._listen(explorer, world, index))
            )
        if spec.gives_up:
            left = world.with_process(index, process._replace(step="leaving", registered=False, alarm=None))
            moves.append(
                Move(
                    f"{spec.name} is revoked", 98, lambda: explorer.start(left, index, "main", "give_up", ())
                )
            )
        return moves

    def finished(
        self, explorer: Explorer, world: World, index: int, call: Call, result: Any, error: Any
    ) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        if call.what == "give_up":
            return world.with_process(index, _ended(process))
        if call.what == "leave":
            return world.with_process(index, self._next(spec, process))
        if call.what == "pass_on":
            return world.with_process(index, process._replace(step="parked", registered=True, alarm=50))
        if call.what == "join":
            return self._joined(explorer, world, index, result)
        if call.what == "ask":
            if isinstance(result, Exception):
                return world.with_process(index, process._replace(step="parked", alarm=500))
            if result == 0:
                return self._start(explorer, world, index)
            alarm = round(min(result, spec.backoff_max / 1000) * 1000)
            return world.with_process(index, process._replace(step="parked", alarm=alarm))
        if error is not None:
            assert isinstance(error, (LockUnavailable, Interrupted)), error
            # Published again, with backoff (lock_unavailable="retry").
            return world.with_process(index, process._replace(step="ready", signalled=False))
        if result is None:
            process = process._replace(signalled=False, since=0, alarm=None, registered=False)
            return world.with_process(index, self._next(spec, process))
        since = process.since or result.since
        return self._ask(explorer, world.with_process(index, process._replace(since=since)), index)

    def hears(self, explorer: Explorer, world: World, index: int, said: str) -> World:
        spec, process = explorer.specs[index], world.processes[index]
        if said == "next":
            if process.step == "parked" and process.registered and (process.alarm or 0) > WOKEN_TRUST_MS:
                process = process._replace(alarm=WOKEN_TRUST_MS)
            return world.with_process(index, process)
        if not process.registered:
            return explorer.start(world, index, "listener", "wake", ())
        process = process._replace(registered=False)
        if spec.saturated and not process.notes and process.step == "parked":
            process = process._replace(step="passing", notes=("passed",), registered=True)
            return explorer.start(world.with_process(index, process), index, "main", "pass_on", ())
        return world.with_process(index, process._replace(signalled=True))

    def is_waiting(self, process: Process) -> bool:
        return process.step == "parked" and not process.notes

    def _begin(self, explorer: Explorer, world: World, index: int, step: str) -> World:
        process = world.processes[index]._replace(step="busy")
        if step == "join":
            process = process._replace(listening=True, registered=True)
        return explorer.start(world.with_process(index, process), index, "main", step, ())

    def _joined(self, explorer: Explorer, world: World, index: int, since: int | Exception) -> World:
        """Without a place its task starts: another delivery of its message has the lock."""
        process = world.processes[index]
        if isinstance(since, Exception):
            return world.with_process(index, process._replace(step="ready"))
        world = world.with_process(index, process._replace(since=since, position=1))
        return self._ask(explorer, world, index) if since else self._start(explorer, world, index)

    def _start(self, explorer: Explorer, world: World, index: int) -> World:
        process = world.processes[index]._replace(step="busy", signalled=False, alarm=None)
        return explorer.start(world.with_process(index, process), index, "main", "enter", ())

    def _ask(self, explorer: Explorer, world: World, index: int) -> World:
        process = world.processes[index]._replace(step="asking", alarm=None, listening=True, registered=True)
        return explorer.start(world.with_process(index, process), index, "main", "ask", ())

    def _listen(self, explorer: Explorer, world: World, index: int) -> World:
        return self._ask(explorer, world, index)
