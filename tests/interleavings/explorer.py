"""Tries every order of the processes' steps, and at each step the faults, and checks each state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from celery_rlock.core.lease import Lease
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Release
from tests.interleavings.clients import CHANNELS, KEYS, PATIENCE, Hold, Input, Job, Replay
from tests.interleavings.holders import has_room, holder_of, holders_of, limit_of
from tests.interleavings.request_checks import ACQUIRES, checked
from tests.interleavings.virtual_server import Reply, Request, VirtualServer
from tests.interleavings.world import (
    Call,
    Intent,
    Process,
    Spec,
    Violation,
    World,
    later,
    next_event,
    normal,
)

A_LONG_RUN = 8  #: the rank of the end of a run that may take long
_MAY_TAKE_LONG = (3, 4, A_LONG_RUN)  #: ranks of the moves before which time may pass: also the network's
#: About how many states of a scenario CI looks at.
STATES = 3_000
_OPTIONAL = 90  #: moves of this rank or above need not happen

#: The calls of the thread in which a signal handler may raise.
_INTERRUPTIBLE = {"enter", "leave", "leave early", "rest", "take", "reserve", "queue"}

#: The longest time that each kind of Redis key may live, in milliseconds.
_LONGEST_LIFE = {
    "token": 70_000,
    "waiters": 120_000,
    "woken": 1_000,
    "newest": 120_000,
    "done": 3_600_000,
    "unacked": 3_600_000,
    "pending": 120_000,
    "superseded": 3_720_000,
}


class Move(NamedTuple):
    """A step that is possible. The lowest rank is taken first where all processes are quick."""

    label: str
    rank: int
    make: Callable[[], World]
    fault: bool = False


@dataclass(frozen=True)
class Scenario:
    """Processes, and how much may go wrong."""

    name: str
    specs: tuple[Spec, ...]
    faults: int = 1  #: how many steps may be faults
    delays: int = 1  #: how often time may pass although a process could act
    kinds_of_fault: tuple[str, ...] = ("dies", "reply lost", "late", "broken", "slow", "interrupted", "deaf")
    undisturbed_idle: int = 0  #: the same while nothing has gone wrong
    longest_idle: int = 3_000  #: milliseconds a lock may be free beside a waiter, when all are quick again
    prefix: tuple[str, ...] = ()  #: the steps before the first state
    states: int = STATES  #: about how many of its states CI looks at
    at_end: Callable[[World], str | None] = lambda world: None


@dataclass
class Report:
    """What an exploration found. `steps` are the labels that lead to the violation."""

    scenario: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    requests: int = 0
    seconds: float = 0.0
    idle: int = 0
    complete: bool = False
    violation: str = ""
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        end = "complete" if self.complete else "bounded"
        line = (
            f"{self.scenario:76} {self.states:8,} states {self.transitions:9,} transitions  "
            f"depth {self.depth:3} {self.requests:7,} requests {self.seconds:6.1f} s  {end}"
        )
        if not self.violation:
            return line
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.steps, 1))
        return f"{line}\nVIOLATION: {self.violation}\n{steps}"


class Explorer:
    """Explores one scenario on one server."""

    def __init__(self, scenario: Scenario, server: VirtualServer) -> None:
        self.scenario, self.specs, self.server = scenario, scenario.specs, server
        self.replay = Replay()
        self._idle: dict[World, int] = {}

    def first(self) -> World:
        return normal(World((), tuple(spec.kind.first(spec) for spec in self.specs)))

    def after_prefix(self) -> World:
        world = self.first()
        for step in self.scenario.prefix:
            world = cast("World", dict(self.successors(world))[step])
        return world

    def explore(self, states: int = 1_000_000, seconds: float = 3600.0) -> Report:
        """Breadth first, so that the first violation found has the fewest steps.

        Ends when every state was seen, or after about so many states or seconds.
        """
        report, begun = Report(self.scenario.name), time.monotonic()
        with self.replay.patched():
            first = self.after_prefix()
            came_from: dict[World, tuple[World, str] | None] = {first: None}
            frontier = [first]
            while frontier:
                reached = []
                for world in frontier:
                    if len(came_from) > states or time.monotonic() - begun > seconds:
                        break
                    try:
                        self.check(world)
                        for label, next_world in self.successors(world):
                            report.transitions += 1
                            if isinstance(next_world, Violation):
                                report.steps = (*_path(came_from, world), label)
                                raise next_world
                            if next_world not in came_from:
                                came_from[next_world] = world, label
                                reached.append(next_world)
                    except Violation as violation:
                        report.violation = str(violation)
                        report.steps = report.steps or (*_path(came_from, world), *violation.steps)
                        break
                else:
                    frontier = reached
                    report.depth += bool(reached)
                    continue
                break
            report.complete = not frontier
        if report.violation:
            report.steps = (*self.scenario.prefix, *report.steps)
        report.states, report.requests = len(came_from), self.server.requests
        report.idle = max(self._idle.values(), default=0)
        report.seconds = time.monotonic() - begun
        return report

    def replayed(self, steps: tuple[str, ...]) -> Iterator[tuple[str, World]]:
        """Take these steps one after the other. Raises the Violation that they lead to."""
        with self.replay.patched():
            world = self.first()
            for step in steps:
                self.check(world)
                next_world = dict(self.successors(world))[step]
                if isinstance(next_world, Violation):
                    raise next_world
                world = next_world
                yield step, world
            self.check(world)

    # Steps.

    def successors(self, world: World) -> Iterator[tuple[str, World | Violation]]:
        moves = self.moves(world)
        is_anyone_able = any(move.rank < _OPTIONAL and move.rank not in _MAY_TAKE_LONG for move in moves)
        for move in moves:
            if move.fault and world.faults >= self.scenario.faults:
                continue
            try:
                made = move.make()
                yield move.label, normal(made._replace(faults=made.faults + 1) if move.fault else made)
            except Violation as violation:
                yield move.label, violation
        wait = next_event(world)
        if wait is not None and (not is_anyone_able or world.delays < self.scenario.delays):
            label = f"{wait} ms pass, though a process could act" if is_anyone_able else f"{wait} ms pass"
            yield label, normal(later(world._replace(delays=world.delays + is_anyone_able), wait))

    def moves(self, world: World) -> list[Move]:
        moves: list[Move] = []
        for index, (spec, process) in enumerate(zip(self.specs, world.processes, strict=True)):
            if process.alive:
                moves += self._moves_of(world, index, spec, process)
        for at, (request, intent) in enumerate(world.network):
            left = world._replace(network=(*world.network[:at], *world.network[at + 1 :]))
            label = f"late {request.verb} of {intent[0].field}"
            moves.append(
                Move(f"{label} arrives", 3, lambda r=request, i=intent, w=left: self.execute(w, r, i)[1])
            )
            moves.append(Move(f"{label} is lost", 4, lambda w=left: w))
        return moves

    def _moves_of(self, world: World, index: int, spec: Spec, process: Process) -> list[Move]:
        moves = []
        if process.inbox:
            said = process.inbox[0]
            rest = process._replace(inbox=process.inbox[1:])
            heard = world.with_process(index, rest)
            if not process.call("listener"):
                moves.append(
                    Move(f"{spec.name} hears '{said}'", 0, lambda: spec.kind.hears(self, heard, index, said))
                )
        for thread, call in process.calls:
            moves += self._call_moves(world, index, spec, thread, call)
        if not process.call("background") and not process.pause:
            for job in process.jobs:
                if not job.due:
                    moves.append(
                        Move(
                            f"{spec.name} releases {job.owner.field} in the background",
                            5,
                            lambda job=job: self.start(world, index, "background", "release", (job,)),
                        )
                    )
                    break
        if (
            process.hold.renew_in == 0
            and process.renewals < spec.renews
            and not process.call("renewer")
            and not process.hold.lost
        ):
            counted = world.with_process(index, process._replace(renewals=process.renewals + 1))
            moves.append(
                Move(f"{spec.name} renews", 6, lambda: self.start(counted, index, "renewer", "renew", ()))
            )
        moves += spec.kind.moves(self, world, index)
        if spec.mortal and "dies" in self.scenario.kinds_of_fault:
            moves.append(Move(f"{spec.name} dies", 99, lambda: self.die(world, index), fault=True))
        if process.listening and "deaf" in self.scenario.kinds_of_fault:
            deaf = process._replace(listening=False, inbox=())
            moves.append(
                Move(
                    f"{spec.name} loses its subscription",
                    99,
                    lambda: world.with_process(index, deaf),
                    fault=True,
                )
            )
        return moves

    def _call_moves(self, world: World, index: int, spec: Spec, thread: str, call: Call) -> list[Move]:
        what = f"{spec.name}'s {call.request.verb}"
        if call.request.verb == "command":
            what = f"{spec.name}'s {call.request.args[0]}"
        if thread != "main":
            what += f" ({thread})"

        def go_on(world: World, answer: Input) -> World:
            return self.advance(
                world, index, thread, call._replace(inputs=(*call.inputs, answer), answer=None)
            )

        def executed(kind: str, *, at_once: bool = True) -> World:
            reply, after = self.execute(world, call.request, call.intent)
            answer = Input(kind, reply.value)
            if at_once:
                return go_on(after, answer)
            process = after.processes[index].with_call(thread, call._replace(answer=answer))
            return after.with_process(index, process)

        def given_up(kind: str) -> World:
            network = tuple(sorted((*world.network, (call.request, call.intent)), key=repr))
            return go_on(world._replace(network=network), Input(kind))

        if call.sent > PATIENCE:
            if call.answer is not None:
                return [Move(f"{what}: the reply came too late", 1, lambda: go_on(world, Input("silent")))]
            return [Move(f"{what} times out", 1, lambda: given_up("silent"))]
        if call.answer is not None:
            answer = call.answer._replace(ago=0)
            return [Move(f"{what}: the reply arrives", 1, lambda: go_on(world, answer))]
        moves = [Move(what, 1, lambda: executed("reply"))]
        faults = {
            "reply lost": (f"{what} is executed, its reply is lost", lambda: executed("broken")),
            "broken": (
                f"{what} is not sent, the connection is broken",
                lambda: go_on(world, Input("broken")),
            ),
            "late": (f"{what} times out and is still on its way", lambda: given_up("silent")),
            "slow": (f"{what} is executed, its reply is slow", lambda: executed("reply", at_once=False)),
            "interrupted": (f"{what} is interrupted by a signal", lambda: given_up("interrupted")),
        }
        for kind, (label, make) in faults.items():
            if kind in self.scenario.kinds_of_fault and (
                kind != "interrupted" or call.what in _INTERRUPTIBLE
            ):
                moves.append(Move(label, 99, make, fault=True))
        return moves

    def start(self, world: World, index: int, thread: str, what: str, args: tuple[Any, ...]) -> World:
        """Begin a call of the client code, up to its first request."""
        process = world.processes[index]
        attempt = fresh_attempt(world, index, self.specs[index].owner)
        request = Request("", (), ())
        intent: Intent = (self.specs[index].owner, None)
        call = Call(what, args, process.hold, attempt, 0, (), request, intent)
        return self.advance(world, index, thread, call)

    def advance(self, world: World, index: int, thread: str, call: Call) -> World:
        """Let the client code go on to its next request, or to its end."""
        spec, process = self.specs[index], world.processes[index]
        is_renewal = thread == "renewer"
        hold = call.before
        if not is_renewal and hold.depth and process.hold.token == hold.token:
            hold = hold._replace(left=process.hold.left, lost=process.hold.lost or hold.lost)
        if thread in {"background", "listener"}:
            hold = process.hold
        body = spec.kind.BODIES[call.what]

        def run(replay: Replay, lease: Lease) -> Any:
            return body(replay, lease, spec, process, *call.args)

        outcome = self.replay.run(
            spec.owner,
            hold,
            process.ahead,
            call.attempt,
            call.started,
            call.inputs,
            run,
            process.hold if is_renewal else None,
            spec.longest_silence,
        )
        new_hold = outcome.hold if spec.renews else outcome.hold._replace(renew_in=None)
        if thread in {"background", "listener"}:
            new_hold = process.hold
        if outcome.request is not None:
            intent = self._intent(spec, call, outcome.request)
            if is_renewal:
                new_hold = process.hold
            call = call._replace(request=outcome.request, intent=intent)
            return world.with_process(index, process.with_call(thread, call)._replace(hold=new_hold))
        process = process.with_call(thread, None)._replace(
            hold=new_hold, jobs=process.jobs + outcome.jobs, ahead=outcome.ahead
        )
        world = world.with_process(index, process)
        if thread == "background":
            return self._job_done(world, index, call.args[0], outcome.error)
        if is_renewal and outcome.replaced_by:
            return spec.kind.is_replaced(self, world, index, outcome.replaced_by)  # type: ignore[no-any-return]
        if thread in {"renewer", "listener"}:
            return world
        return spec.kind.finished(self, world, index, call, outcome.result, outcome.error)  # type: ignore[no-any-return]

    def _intent(self, spec: Spec, call: Call, request: Request) -> Intent:
        if call.what == "release":
            job: Job = call.args[0]
            return job.owner, (job.release.fence,) if job.release.fence else None
        if request.verb in ACQUIRES:
            return spec.owner, (request.args[4],)
        if request.verb == "release" and request.args[0]:
            return Owner.of_field("", request.args[0]), call.args[-1] if call.what == "free" else _names(
                call.before
            )
        if request.verb == "renew":
            return spec.owner, (request.args[1],)
        return spec.owner, ()

    def _job_done(self, world: World, index: int, job: Job, error: BaseException | None) -> World:
        process = world.processes[index]
        rest = list(process.jobs)
        at = next(
            i
            for i, one in enumerate(rest)
            if one.release == job.release and one.owner == job.owner and not one.due
        )
        current = rest.pop(at)
        if error is not None and current.give_up:
            return world.with_process(index, process._replace(jobs=(*rest, current), pause=500))
        return world.with_process(index, process._replace(jobs=tuple(rest)))

    def die(self, world: World, index: int) -> World:
        """The process is killed. Its requests may still arrive."""
        spec, process = self.specs[index], world.processes[index]
        on_their_way = [(call.request, call.intent) for _, call in process.calls if call.answer is None]
        network = tuple(sorted((*world.network, *on_their_way), key=repr))
        world = world._replace(network=network).with_process(index, spec.kind.dead(process))
        if spec.parent is not None:
            parent = world.processes[spec.parent]
            jobs = tuple(Job(spec.owner, Release(), due, 60_000) for due in (0, PATIENCE + 100))
            world = world.with_process(spec.parent, parent._replace(jobs=parent.jobs + jobs))
        return spec.kind.died(self, world, index, process)  # type: ignore[no-any-return]

    # What the server does, and what it must not do.

    def execute(self, world: World, request: Request, intent: Intent) -> tuple[Reply, World]:
        channels = tuple(
            CHANNELS + spec.listener
            for spec, process in zip(self.specs, world.processes, strict=True)
            if process.alive and process.listening
        )
        reply = self.server.run(request, world.keys, tuple(sorted(set(channels))))
        processes = list(world.processes)
        for channel, said in reply.published:
            what, _, _, waiter = said.split(" ", 3)
            for index, spec in enumerate(self.specs):
                if CHANNELS + spec.listener == channel and spec.waiter == waiter and processes[index].alive:
                    inbox = (*processes[index].inbox, what)
                    processes[index] = processes[index]._replace(inbox=inbox)
        after = world._replace(keys=reply.keys, processes=tuple(processes))
        return reply, checked(self.specs, world, after, request, intent, reply.value)

    # What must hold in each state.

    def check(self, world: World) -> None:
        self._check_keys(world)
        self._check_holders(world)
        for index, spec in enumerate(self.specs):
            spec.kind.check(self, world, index)
        self._check_future(world)

    def _check_keys(self, world: World) -> None:
        longest_lease = max([spec.ttl for spec in self.specs])
        for key in world.keys:
            kind = key.name.removeprefix(f"{KEYS.lock}:").split(":")[0].split(".")[0]
            longest = max(longest_lease, 3_600_000) if key.name == KEYS.lock else _LONGEST_LIFE[kind]
            if key.left < 0:
                raise Violation(f"{key.name} lives for ever")
            if key.left > longest:
                raise Violation(f"{key.name} lives for {key.left} ms")

    def _check_holders(self, world: World) -> None:
        self._check_places(world)
        inside: list[Spec] = []
        for spec, process in zip(self.specs, world.processes, strict=True):
            hold = process.hold
            if not process.alive or not spec.kind.is_inside(process):
                continue
            holder = holder_of(world.lock, spec.owner.field)
            if holder is not None and holder.token != str(hold.token):
                holder = None
            if hold.lost and hold.left and holder is not None:
                raise Violation(f"{spec.name} was told that its lock is lost, and Redis still has it")
            if hold.lost:
                continue
            inside.append(spec)
            if holder is None:
                raise Violation(f"{spec.name} believes that it holds the lock, and Redis does not have it")
            is_quiet = not (process.calls or process.jobs or process.notes or world.network)
            if is_quiet and holder.depth != str(hold.depth):
                raise Violation(f"{spec.name} has entered {hold.depth} times, Redis says {holder.depth}")
            if (holder.limit, holder.slot) != (hold.limit, hold.slot):
                raise Violation(f"{spec.name} does not know its limit and slot: {holder}")
        if inside and len(inside) > min(spec.limit for spec in inside):
            raise Violation(f"too many holders: {' and '.join(spec.name for spec in inside)}")

    def _check_places(self, world: World) -> None:
        """Each owner inside can rely on its own limit. Places that rest or are kept for a waiter count."""
        inside = holders_of(world.lock)
        if inside and len(inside) > min(holder.limit for holder in inside):
            raise Violation(f"too many places are taken: {[holder.field for holder in inside]}")
        slots = [holder.slot for holder in inside if not holder.waiter]
        if len(slots) > len(set(slots)):
            raise Violation(f"two owners have the same slot: {slots}")
        if any(holder.slot >= holder.limit for holder in inside):
            raise Violation(f"a slot is not below its owner's limit: {inside}")

    def _check_future(self, world: World) -> None:
        """If from now on nothing goes wrong, all ends well, and soon."""
        path: list[tuple[World, int]] = []
        steps: list[str] = []
        try:
            seen = set()
            while world not in self._idle:
                if world in seen:
                    raise Violation("though nothing more goes wrong, the processes never end")
                seen.add(world)
                label, next_world, idle = self._fair_step(world)
                if next_world is None:
                    self._idle[world] = 0
                    break
                path.append((world, idle))
                steps.append(label)
                world = next_world
            idle = self._idle[world]
            for earlier, wait in reversed(path):
                idle += wait
                self._idle[earlier] = idle
                undisturbed = not earlier.faults and not earlier.delays
                if idle > (self.scenario.undisturbed_idle if undisturbed else self.scenario.longest_idle):
                    raise Violation(f"the lock is free for {idle} ms while a process waits for it")
        except Violation as violation:
            raise Violation(str(violation), (*steps, *violation.steps)) from None

    def _fair_step(self, world: World) -> tuple[str, World | None, int]:
        """What happens next if all processes are quick: its label, the state, and the idle milliseconds."""
        moves = [move for move in self.moves(world) if move.rank < _OPTIONAL]
        if moves:
            move = min(moves, key=lambda move: move.rank)
            try:
                return move.label, normal(move.make()), 0
            except Violation as violation:
                raise Violation(str(violation), (move.label,)) from None
        wait = next_event(world)
        if wait is None:
            self._check_end(world)
            return "", None, 0
        return f"{wait} ms pass", normal(later(world, wait)), wait if self._is_idle(world) else 0

    def _is_idle(self, world: World) -> bool:
        """Whether there is room for the first waiter, or, while the line is empty, for any waiter."""
        waiting = {
            spec.waiter
            for spec, process in zip(self.specs, world.processes, strict=True)
            if process.alive and spec.kind.is_waiting(process)
        }
        line = world.key(KEYS.waiters)
        first = {line.values[0]} if line is not None else waiting
        return bool(waiting) and any(
            has_room(world.lock, limit_of(waiter), beside_turns=False) for waiter in first
        )

    def _check_end(self, world: World) -> None:
        for spec, process in zip(self.specs, world.processes, strict=True):
            if process.alive and not spec.kind.has_ended(process):
                raise Violation(f"{spec.name} waits for ever ({process.step})")
        if world.keys:
            raise Violation(f"at the end this is left: {[key.name for key in world.keys]}")
        wrong = self.scenario.at_end(world)
        if wrong:
            raise Violation(wrong)


def fresh_attempt(world: World, index: int, owner: Owner) -> str:
    """The next number after those of all holds, jobs and requests of this owner: only their order counts."""
    process = world.processes[index]
    used = {process.hold.attempt}
    used |= {name for _, call in process.calls for name in (call.attempt, call.before.attempt)}
    used |= {job.release.fence for job in process.jobs if job.owner == owner}
    used |= {name for _, (of, names) in world.network if of.field == owner.field for name in names or ()}
    used |= {holder.attempt for holder in holders_of(world.lock) if holder.field == owner.field}
    return str(max((int(name) for name in used if name.isdigit() and len(name) < 6), default=0) + 1)


def _names(hold: Hold) -> tuple[str, ...]:
    return hold.attempt, str(hold.token)


def _path(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    before = came_from[world]
    while before is not None:
        steps.append(before[1])
        before = came_from[before[0]]
    return tuple(reversed(steps))
