"""The state of everything: the Redis keys, the processes, and what is on its way between them.

Times are milliseconds from now, so that a state does not depend on when it was reached. Points in time that
are only compared (tokens, and when a waiter came) are kept as numbers just below NOW, in their order.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from celery_rlock.options.options import Options
from celery_rlock.server.owner import Owner
from tests.interleavings.clients import KEYS, Hold, Input, Job
from tests.interleavings.virtual_server import NOW, Key, Request

_STAMP = 10**14  #: every number above it is a point in time
_STAMP_IN_TEXT = re.compile(r"\d{15,}")  #: alone, or in the record of a place or of a pending call
_STAMP_DIGITS = 15
_LONG = 20_000  #: memories that last longer end only when nothing else is going on, in milliseconds
_OLDEST = 10_000  #: no process distinguishes what was longer ago, in milliseconds

#: Whose hold a request may change: any of this owner (None), or the one with this attempt or token.
Intent = tuple[Owner, tuple[str, ...] | None]


class Violation(Exception):
    """A state or a step that must not be. `steps` lead on from the state that was looked at."""

    def __init__(self, text: str, steps: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.steps = steps


class Call(NamedTuple):
    """A call of the client code that waits for the answer to its request."""

    what: str
    args: tuple[Any, ...]
    before: Hold
    attempt: str
    started: int  #: milliseconds ago
    inputs: tuple[Input, ...]
    request: Request
    intent: Intent
    answer: Input | None = None  #: executed, and the reply is on its way

    @property
    def sent(self) -> int:
        """How many milliseconds ago the request was sent."""
        return self.inputs[-1].ago if self.inputs else self.started


class Process(NamedTuple):
    step: str = "ready"
    alive: bool = True
    position: int = 0  #: in its program
    hold: Hold = Hold()
    #: What it knows of the server's clock. Its very first request only asks for that: it is left out here.
    ahead: int | None = 0
    calls: tuple[tuple[str, Call], ...] = ()  #: by thread
    jobs: tuple[Job, ...] = ()
    pause: int = 0  #: until the background thread goes on
    listening: bool = False
    registered: bool = False  #: whether a wake-up has a callback
    signalled: bool = False
    alarm: int | None = None
    since: int = 0
    inbox: tuple[str, ...] = ()
    renewals: int = 0
    memory: tuple[Any, ...] = ()  #: what the server has told it
    notes: tuple[str, ...] = ()  #: what else its kind remembers

    def call(self, thread: str) -> Call | None:
        return dict(self.calls).get(thread)

    def with_call(self, thread: str, call: Call | None) -> Process:
        calls = {**dict(self.calls), thread: call}
        return self._replace(calls=tuple(sorted((name, one) for name, one in calls.items() if one)))


@dataclass(frozen=True)
class Spec:
    """What does not change about a process."""

    name: str
    kind: Any
    owner: Owner
    program: tuple[str, ...] = ()
    ttl: int = 3_000
    waits: bool = False
    gives_up: bool = False  #: whether it may stop waiting at any moment
    renews: int = 0
    parent: int | None = None  #: the process that releases its lock when it dies
    mortal: bool = True
    saturated: bool = False  #: whether its worker has no free process when its turn first comes
    backoff_max: int = 30_000
    after: int | None = None  #: the process that must come first
    follows: bool = False  #: whether it is another message that `after` publishes, not a redelivery
    redelivered: bool = False
    tries_again: bool = False  #: whether it asks again after an error
    retries: bool = False  #: whether its run ends with `self.retry()`, for which it keeps the key
    listener: str = ""

    limit: int = 1
    hold: int = 0  #: how long its place stays taken from the start (`lock_hold_at_least`), in milliseconds
    longest_silence: float = math.inf  #: seconds between two renewals at most
    options: Options = Options()  # noqa: RUF009 - it is frozen

    @property
    def waiter(self) -> str:
        listener = self.listener if self.limit == 1 else f"{self.listener}/{self.limit}"
        return f"{listener}:{self.owner.field}"


class World(NamedTuple):
    keys: tuple[Key, ...]
    processes: tuple[Process, ...]
    network: tuple[tuple[Request, Intent], ...] = ()  #: requests that their clients have given up
    faults: int = 0
    delays: int = 0
    last_token: int = 0
    log: tuple[str, ...] = ()  #: what must not happen twice, or never

    def key(self, name: str) -> Key | None:
        return next((key for key in self.keys if key.name == name), None)

    @property
    def lock(self) -> Key | None:
        return self.key(KEYS.lock)

    def with_process(self, index: int, process: Process) -> World:
        processes = (*self.processes[:index], process, *self.processes[index + 1 :])
        return self._replace(processes=processes)


def normal(world: World) -> World:
    """The same state with its points in time moved together: equal for equal states."""
    past = sorted(stamp for stamp in _stamps_of(world) if stamp <= NOW)
    return _with_stamps(world, {stamp: NOW - len(past) + i for i, stamp in enumerate(past)})


def _stamps_of(world: World) -> set[int]:
    parts = (*world.keys, *world.processes, *world.network)
    return {stamp for part in parts for stamp in _stamps(part)} | {world.last_token} - {0}


def _with_stamps(world: World, moved: dict[int, int]) -> World:
    if all(old == new for old, new in moved.items()):
        return world

    def part_moved(part: Any) -> Any:
        stamps = _stamps(part)
        return _part_moved(part, tuple(moved.get(stamp, stamp) for stamp in stamps)) if stamps else part

    return world._replace(
        keys=tuple(map(part_moved, world.keys)),
        processes=tuple(map(part_moved, world.processes)),
        network=tuple(map(part_moved, world.network)),
        last_token=moved.get(world.last_token, world.last_token),
    )


@lru_cache(maxsize=200_000)
def _stamps(part: Any) -> tuple[int, ...]:
    found: set[int] = set()
    _collect(part, found)
    return tuple(sorted(found))


@lru_cache(maxsize=200_000)
def _part_moved(part: Any, stamps: tuple[int, ...]) -> Any:
    return _moved(part, dict(zip(_stamps(part), stamps, strict=True)))


def _collect(value: Any, found: set[int]) -> None:
    if isinstance(value, tuple):
        for part in value:
            if part:
                _collect(part, found)
    elif type(value) is int:
        if value > _STAMP:
            found.add(value)
    elif type(value) is str and len(value) >= _STAMP_DIGITS:
        found.update(map(int, _STAMP_IN_TEXT.findall(value)))


def _moved(value: Any, moved: dict[int, int]) -> Any:
    if isinstance(value, tuple):
        parts = [_moved(part, moved) if part else part for part in value]
        return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    if type(value) is int and value > _STAMP:
        return moved.get(value, value)
    if type(value) is str and len(value) >= _STAMP_DIGITS:
        return _STAMP_IN_TEXT.sub(lambda found: str(moved.get(int(found[0]), found[0])), value)
    return value


def next_event(world: World) -> int | None:
    """Milliseconds until something ends or is due by itself."""
    times = [key.left for key in world.keys if 0 < key.left <= _LONG]
    for process in world.processes:
        times += [job.due for job in process.jobs]
        times += [process.pause, process.alarm or 0]
        if process.hold.depth and not process.hold.lost:
            times += [process.hold.left, process.hold.renew_in or 0]
    # The deadlines of requests, and what the scripts wrote into the records of places and of pending calls.
    for part in (*world.keys, *(request for request, _ in world.network)):
        times += [(stamp - NOW + 999) // 1000 for stamp in _stamps(part) if stamp > NOW]
    memories = (key.left for key in world.keys if key.left > 0)
    return min((time for time in times if time > 0), default=min(memories, default=None))


def later(world: World, ms: int) -> World:
    """The state after this time, in which no process did anything."""
    world = _with_stamps(world, {at: at - ms * 1000 for at in _stamps_of(world) if at > NOW})
    return world._replace(
        keys=tuple(key for key in (_older_key(key, ms) for key in world.keys) if key.left),
        processes=tuple(_older(process, ms) for process in world.processes),
    )


def _older_key(key: Key, ms: int) -> Key:
    if key.left < 0 or (key.left > _LONG and ms <= _LONG):
        return key
    return key._replace(left=max(0, key.left - ms))


def _older(process: Process, ms: int) -> Process:
    if not process.alive:
        return process
    return process._replace(
        hold=_older_hold(process.hold, ms),
        calls=tuple((thread, _older_call(call, ms)) for thread, call in process.calls),
        jobs=tuple(
            job._replace(due=max(0, job.due - ms), give_up=max(0, job.give_up - ms)) for job in process.jobs
        ),
        pause=max(0, process.pause - ms),
        alarm=None if process.alarm is None else max(0, process.alarm - ms),
    )


def _older_hold(hold: Hold, ms: int) -> Hold:
    if not hold.depth:
        return hold
    left = max(0, hold.left - ms)
    renew_in = None if hold.renew_in is None or not left else max(0, hold.renew_in - ms)
    return hold._replace(left=left, lost=hold.lost or not left, renew_in=renew_in)


def _older_call(call: Call, ms: int) -> Call:
    return call._replace(
        before=_older_hold(call.before, ms),
        started=min(_OLDEST, call.started + ms),
        inputs=tuple(_older_input(one, ms) for one in call.inputs),
        answer=_older_input(call.answer, ms) if call.answer else None,
    )


def _older_input(one: Input, ms: int) -> Input:
    return one._replace(ago=min(_OLDEST, one.ago + ms), executed=min(_OLDEST, one.executed + ms))
