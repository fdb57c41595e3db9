"""The shipped client code, stopped at each of its requests until the explorer answers it.

The code of `celery_rlock.core.lease`, `core.renewal`, `core.pending_call`, `running.task_lock`,
`running.pending_place` and `server.lock_server` runs unchanged. A call that is under way is kept as the
answers that it got so far. To go on, it is run again from its start with these answers and one more. Its
clock shows what it showed then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_rlock.core import lease as lease_module
from celery_rlock.core import pending_call as pending_call_module
from celery_rlock.core import renewal as renewal_module
from celery_rlock.core.lease import Lease
from celery_rlock.core.renewal import ServerRenewer
from celery_rlock.errors import LockLost
from celery_rlock.publishing import unique as unique_module
from celery_rlock.running import pending_place as pending_place_module
from celery_rlock.running.task_lock import CallLock
from celery_rlock.server import lock_server as lock_server_module
from celery_rlock.server import script as script_module
from celery_rlock.server.clock import ServerClock
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import QUEUED, Owner
from celery_rlock.server.redis_keys import DEFAULT_PREFIX, RedisKeys
from celery_rlock.server.replies import Release
from celery_rlock.server.script import Script
from tests.interleavings.virtual_server import COMMAND, NOW, VERBS, Request

KEYS = RedisKeys.of("k")
CHANNELS = f"{DEFAULT_PREFIX}wake:"
LOCAL_NOW = NOW / 1e6
PATIENCE = 1_000  #: milliseconds after which a client gives up on a request


class Input(NamedTuple):
    """How a request ended for its client: "reply", "broken", "silent" (a timeout) or "interrupted"."""

    kind: str
    value: Any = None
    ago: int = 0  #: milliseconds since the client learnt it
    executed: int = 0  #: milliseconds since the server executed the request


class Hold(NamedTuple):
    """The fields of a Lease. Times are milliseconds from now."""

    depth: int = 0
    token: int = 0
    attempt: str = ""
    ttl: int = 0
    left: int = 0
    lost: bool = False
    renew_in: int | None = None
    limit: int = 1
    slot: int = 0


class Unqueue(NamedTuple):
    """What the background thread still has to tell Redis: the call of this publication is not pending."""

    attempt: str
    fence: str = ""


class Job(NamedTuple):
    """What the background thread sends."""

    owner: Owner
    release: Release | Unqueue
    due: int
    give_up: int


class Outcome(NamedTuple):
    """Either the request that the call waits for, or its result or error."""

    hold: Hold
    jobs: tuple[Job, ...]
    ahead: int | None
    request: Request | None = None
    result: Any = None
    error: BaseException | None = None
    replaced_by: str = ""  #: the task that replaces this one, as a renewal has told


class Interrupted(BaseException):
    """A signal handler raised while the client waited for a reply."""


class _NeedsReply(BaseException):
    """The call cannot go on without the answer to its request. What it does on its way out is forgotten."""


class _Clock(ServerClock):
    """The real estimate of the server's clock, which in this world agrees with the client's."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(object())  # type: ignore[arg-type]
        self.patience = PATIENCE / 1000
        self._replay = replay

    def learn(self, server_time: int, sent: float) -> None:
        super().learn(round(self._replay.executed * 1e6), sent)


class _Commands:
    """The few commands that the code sends without a script."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer

    def zrem(self, key: str, member: str) -> Any:
        return self._answer("ZREM", key, member)

    def get(self, key: str) -> Any:
        return self._answer("GET", key)

    def set(self, key: str, value: object, px: int) -> Any:
        return self._answer("SET", key, value, "PX", px)


class _Server(RedisLockServer):
    def __init__(self, replay: Replay) -> None:
        self.client = _Commands(replay.answer)  # type: ignore[assignment]
        self.prefix, self.channels = DEFAULT_PREFIX, CHANNELS
        self._send = replay.answer
        self._clock = _Clock(replay)


class _NoLoop:
    def call_by(self, when: float) -> None:
        pass


class Replay:
    """Runs one call of the client code at a time."""

    def __init__(self) -> None:
        self.server = _Server(self)
        self.renewer = ServerRenewer()
        self.renewer._loop = _NoLoop()  # type: ignore[assignment]
        self.time = self.executed = LOCAL_NOW
        self._verbs = {Script.load(verb).sha: verb for verb in VERBS}
        self._inputs: list[Input] = []
        self._meanwhile: Hold | None = None
        self._jobs: list[Job] = []
        self._lease: Any = None
        self._replaced_by = ""
        self._stopped: _NeedsReply | None = None

    def run(
        self,
        owner: Owner,
        hold: Hold,
        ahead: int | None,
        attempt: str,
        started: int,
        inputs: tuple[Input, ...],
        body: Callable[[Replay, Lease], Any],
        meanwhile: Hold | None = None,
        longest_silence: float = math.inf,
    ) -> Outcome:
        """Run `body` with these answers. `attempt` is the name that a new ownership gets.

        `meanwhile` is what other threads have made of the hold before the last answer came. The lease is
        renewed each `longest_silence` seconds at least.
        """
        self.time = LOCAL_NOW - started / 1000
        self._inputs, self._jobs = list(inputs), []
        self._meanwhile = meanwhile
        self.server._clock._ahead = None if ahead is None else ahead * 1000.0
        self._lease = lease = Lease(self.server, KEYS, owner, lambda: attempt, task="t")
        lease.longest_silence, self._replaced_by, self._stopped = longest_silence, "", None
        lease.on_replaced(self._is_replaced)
        self._set(hold)
        try:
            result = body(self, lease)
        except _NeedsReply as needed:
            return needed.args[0]  # type: ignore[no-any-return]
        except (Exception, Interrupted) as error:
            return self._outcome(error=error)
        return self._outcome(result=result)

    def answer(self, *command: Any) -> Any:
        """What stands in the place of the connection."""
        if self._stopped is not None:  # what the call does on its way out has not happened
            raise self._stopped
        if not self._inputs:
            self._stopped = _NeedsReply(self._outcome(request=self._request(command)))
            raise self._stopped
        given = self._inputs.pop(0)
        if not self._inputs and self._meanwhile is not None:
            self._set(self._meanwhile)
        self.time = LOCAL_NOW - given.ago / 1000
        self.executed = LOCAL_NOW - given.executed / 1000
        if given.kind == "broken":
            raise RedisConnectionError("the connection broke")
        if given.kind == "silent":
            raise RedisTimeoutError("no reply")
        if given.kind == "interrupted":
            raise Interrupted
        return list(given.value) if isinstance(given.value, tuple) else given.value

    def now(self) -> float:
        return self.time

    # Stand in for the background thread and the renewer in `core.lease`.

    def add(self, what: Any, do: Any = None, **options: Any) -> None:
        if isinstance(what, Lease):
            self.renewer.add(what)
            return
        release: Release | Unqueue
        if do.func == self.server.unqueue:
            _, task_id, attempt = do.args
            owner, release = Owner("", QUEUED, task_id), Unqueue(attempt)
        else:
            _, owner, release = do.args
        due = max(0, _ms(options["not_before"])) if options.get("not_before") else 0
        self._jobs.append(Job(owner, release, due, max(0, _ms(options["give_up"]))))

    def discard(self, lease: Lease) -> None:
        self.renewer.leases.pop(lease, None)

    def _is_replaced(self, by: str) -> None:
        self._replaced_by = by

    def _set(self, hold: Hold) -> None:
        lease = self._lease
        lease.depth, lease.token, lease._attempt = hold.depth, hold.token, hold.attempt
        lease.limit, lease.slot = hold.limit, hold.slot
        lease.ttl, lease.deadline = hold.ttl / 1000, LOCAL_NOW + hold.left / 1000
        lease.lost = LockLost("k", str(lease.owner), "", "t") if hold.lost else None
        self.renewer.leases = {}
        if hold.renew_in is not None:
            self.renewer.leases[lease] = LOCAL_NOW + hold.renew_in / 1000

    def _request(self, command: tuple[Any, ...]) -> Request:
        if command[0] != "EVALSHA":
            return Request(COMMAND, (command[1],), tuple(map(str, command)))
        _, sha, count, *rest = command
        return Request(self._verbs[sha], tuple(rest[:count]), tuple(map(str, rest[count:])))

    def _outcome(self, **more: Any) -> Outcome:
        lease, renew_at = self._lease, self.renewer.leases.get(self._lease)
        hold = Hold()
        if lease.depth:
            hold = Hold(
                lease.depth,
                lease.token,
                lease._attempt,
                round(lease.ttl * 1000),
                _ms(lease.deadline),
                lease.lost is not None,
                None if renew_at is None else max(0, _ms(renew_at)),
                lease.limit,
                lease.slot,
            )
        ahead = self.server._clock._ahead
        more["replaced_by"] = self._replaced_by
        return Outcome(hold, tuple(self._jobs), None if ahead is None else round(ahead / 1000), **more)

    def _pipelined(self, _: Any, commands: Any) -> list[Any]:
        answers: list[Any] = []
        for command in commands:
            try:
                answers.append(self.answer(*command))
            except RedisError as error:
                answers.append(error)
        return answers

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Inside the block, the client code has this clock, these threads and this connection."""
        with (
            patch.object(lease_module, "now", self.now),
            patch.object(lease_module, "background", self),
            patch.object(lease_module, "renewer", self),
            patch.object(lease_module, "_held", set()),
            patch.object(lease_module, "_notify", _call_at_once),
            patch.object(pending_call_module, "now", self.now),
            patch.object(pending_call_module, "background", self),
            patch.object(pending_call_module.logger, "warning"),
            patch.object(renewal_module, "now", self.now),
            patch.object(renewal_module.logger, "warning"),
            patch.object(lock_server_module, "now", self.now),
            patch.object(unique_module, "now", self.now),
            patch.object(pending_place_module, "new_delivery", lambda: "publication-of-retry"),
            patch.object(script_module, "_pipelined", self._pipelined),
        ):
            yield


def task_lock_of(lease: Lease, limit: int = 1, *, is_used: bool = True) -> CallLock:
    """The lock of a task's call, which has entered it as often as its lease says."""
    lock = CallLock(None, (lease,), {KEYS.key: limit})  # type: ignore[arg-type]
    lock._entered = [lease] if lease.depth else []
    lock.is_used = is_used
    return lock


def _call_at_once(callbacks: tuple[Callable[[], None], ...]) -> None:
    for callback in callbacks:
        callback()


def _ms(moment: float) -> int:
    return round((moment - LOCAL_NOW) * 1000)
