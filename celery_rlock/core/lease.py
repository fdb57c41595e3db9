"""What this process knows of one owner's hold on one key."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from celery_rlock.core.log import about, logger
from celery_rlock.core.name import Name, Owner
from celery_rlock.core.renewal import renewer
from celery_rlock.core.replies import Busy, Heir, Taken
from celery_rlock.core.scripts import Scripts
from celery_rlock.errors import LockLost, LockUnavailable

_TOO_EARLY = 2

LostCallback = Callable[[LockLost], None]


class Lease:
    """A lock as its owner sees it: how deep, under which token, and until when by the local clock.

    Depths go to Redis as absolute numbers, so any of these calls may be repeated, or find that an
    earlier try whose reply was lost has done the work.
    """

    def __init__(self, scripts: Scripts, name: Name, owner: Owner, task: str = "") -> None:
        self.scripts, self.name, self.owner, self.task = scripts, name, owner, task
        self.depth = 0
        self.token = 0
        self.ttl = 0.0
        self.since = 0.0
        self.deadline = 0.0
        self.renew_until = math.inf
        self.in_doubt = False  #: whether Redis may have it as ours, though we could not enter
        self.lost: LockLost | None = None
        self.on_lost: list[LostCallback] = []

    @property
    def held(self) -> bool:
        return self.depth > 0 and self.lost is None and monotonic() < self.deadline

    @property
    def described(self) -> dict[str, object]:
        """What a line in the log says of it, beside its text."""
        return about(self.name.key, self.owner, self.owner.task_id)

    def enter(self, ttl: float, replicas: int = 0) -> Busy | None:
        """Go one deeper. Busy says who is in instead; None that we are.

        Before the first step counts, so many `replicas` must know of it.

        Whatever is raised, also by a signal while the reply is under way, leaves the depth as it was,
        here and in Redis.
        """
        self.ensure_not_lost()
        depth, ttl = self.depth, max(ttl, self.ttl)
        sent = monotonic()
        try:
            wanted = replicas if depth == 0 else 0
            reply = self.scripts.acquire(self.name, self.owner, depth + 1, ttl, self.task, replicas=wanted)
            if isinstance(reply, Taken):
                self._entered(depth + 1, reply.token, ttl, sent)
                return None
        except BaseException:
            self._undo(depth)
            raise
        if isinstance(reply, Busy) and depth == 0:
            return reply
        raise self.lose("it was gone from Redis when it was entered again")

    def leave(self, depth: int, *, early: bool = False, heir: Heir | None = None) -> None:
        """Go back to `depth`; at 0 the lock is freed, or the heir's. Nothing happens when we are not deeper.

        With `early` it stays held when a copy of the task's message was delivered: until `finish`.
        Raises LockUnavailable when Redis could not be told: then the lease ends it.
        """
        if self.depth > depth:
            release = partial(self.scripts.release, self.name, self.owner, depth, early=early, heir=heir)
            self._leave(depth, release)

    def finish(self, retries: int, heir: Heir | None = None) -> None:
        """Free the lock of a task that has ended, and tell the copies of its message."""
        if self.depth > 0:
            self._leave(0, partial(self.scripts.finish, self.name, self.owner, retries, heir))

    def extend(self, seconds: float) -> None:
        """Let the lease last at least `seconds` from now; renewal goes on as before."""
        self.ensure_not_lost()
        sent = monotonic()
        answer = self.scripts.renew([(self.name, self.owner, seconds)])[0]
        if isinstance(answer, Exception):
            raise LockUnavailable(self.name.key, str(answer)) from answer
        if not answer:
            raise self.lose("it was gone from Redis when it was extended")
        self.renewed(sent, seconds)

    def renewed(self, sent: float, ttl: float) -> None:
        """Redis has answered a renewal that was sent at `sent`."""
        self.deadline = max(self.deadline, sent + ttl - _margin(ttl))

    def check_deadline(self) -> None:
        """Past the local deadline the lock is lost, whatever Redis says later."""
        if self.lost is None and self.depth > 0 and monotonic() >= self.deadline:
            self.lose("its lease ended before it was renewed")

    def ensure_not_lost(self) -> None:
        self.check_deadline()
        if self.lost is not None:
            raise self.lost

    def lose(self, reason: str) -> LockLost:
        """Mark the lock as lost and tell, once; off this thread, which has other locks to care for."""
        if self.lost is None:
            self.lost = LockLost(self.name.key, str(self.owner), reason)
            renewer.discard(self)
            told = tuple(self.on_lost)
            threading.Thread(target=_tell, args=(told, self.lost), name="rlock-lost", daemon=True).start()
        return self.lost

    def _entered(self, depth: int, token: int, ttl: float, sent: float) -> None:
        self.ttl, self.token, self.depth = ttl, token, depth
        self.renewed(sent, ttl)
        if monotonic() >= self.deadline:
            raise LockUnavailable(self.name.key, f"the answer took longer than the lease of {ttl} s")
        if depth == 1:
            self.since = sent
            renewer.add(self)

    def _leave(self, depth: int, release: Callable[[], int]) -> None:
        self.check_deadline()
        before, self.depth = self.depth, depth
        if depth == 0:
            renewer.discard(self)
        # A lost lock may still stand in Redis under our name: nobody should wait for it.
        in_time = monotonic() < self.deadline
        answer = release()
        if answer == _TOO_EARLY:
            self.depth = before
            renewer.add(self)
        # Gone before its time means that an earlier try had freed it and only the reply was lost.
        elif answer != 1 and not (depth == 0 and in_time) and self.lost is None:
            self.lose("it was gone from Redis when it was left")

    def _undo(self, depth: int) -> None:
        self.depth = depth
        if depth == 0:
            renewer.discard(self)
        try:
            self.scripts.undo(self.name, self.owner, depth)
            self.in_doubt = False
        except Exception as error:  # noqa: BLE001 - the first error is the one to tell; the lease ends ours
            self.in_doubt = depth == 0
            logger.debug("could not undo the acquire of %r: %s", self.name.key, error, extra=self.described)


def _tell(callbacks: tuple[LostCallback, ...], lost: LockLost) -> None:
    for callback in callbacks:
        try:
            callback(lost)
        except Exception:
            logger.exception("a callback for the lost lock %r failed", lost.key)


def _margin(ttl: float) -> float:
    """What the local clock and the server's may drift apart during a lease."""
    return ttl * 0.01 + 0.002
