"""What one asyncio task holds, and the renewal of all leases of an event loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
from collections.abc import Callable
from secrets import token_hex
from typing import Any

from celery_rlock.aio.async_server import AsyncLockServer
from celery_rlock.aio.event_loop import RunningLoop, outcome
from celery_rlock.core.lease import margin
from celery_rlock.errors import LockLost, LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.server.clock import now
from celery_rlock.server.failures import brief
from celery_rlock.server.lock_server import Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy, Place, Release, ReleaseReply, Taken

#: Stands in the place of a delivery. The task id has the nonce that makes the owner unique.
ASYNCIO = "asyncio"
_LONGEST_NAME = 32

_LockId = tuple[Any, str]


class TaskOwner:
    """One asyncio task as the owner of locks. When the task ends, the locks that it still holds are freed."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        worker = f"{os.getpid()}@{socket.gethostname()}"
        self.owner = Owner(worker, ASYNCIO, f"{token_hex(4)}-{task.get_name()[:_LONGEST_NAME]}")
        self._leases: dict[_LockId, AsyncLease] = {}
        self._attempts = itertools.count(1)
        task.add_done_callback(self._on_end)

    def lease(self, lock_server: AsyncLockServer, redis_keys: RedisKeys) -> AsyncLease:
        """The lease of this task on the key, held or not."""
        lock_id = lock_server.identity, redis_keys.lock
        return self._leases.get(lock_id) or AsyncLease(lock_server, redis_keys, self, lock_id)

    def note(self, lease: AsyncLease) -> None:
        """Keep the lease while it is held."""
        if lease.depth:
            self._leases[lease.lock_id] = lease
        else:
            for lock_id in [lock_id for lock_id, other in self._leases.items() if other is lease]:
                del self._leases[lock_id]

    async def find_lease(self, lock_server: AsyncLockServer, redis_keys: RedisKeys) -> AsyncLease:
        """Like `lease`, but also finds one that the task holds through another client of the same server.

        Two clients may reach one server by different names, so the server is asked for the lock's token.
        """
        found = self.lease(lock_server, redis_keys)
        for other in [] if found.depth else set(self._leases.values()):
            if other.redis_keys.lock == redis_keys.lock:
                request = lock_server.token(redis_keys, self.owner)
                if await lock_server.loop.uninterrupted(redis_keys.key, request) == other.token:
                    self._leases[found.lock_id] = other
                    return other
        return found

    def new_attempt(self) -> str:
        return str(next(self._attempts))

    def _on_end(self, _: object) -> None:
        for lease in set(self._leases.values()):
            lease.free_abandoned()


def current_owner(loop: RunningLoop) -> TaskOwner:
    """The running asyncio task as an owner."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("celery_rlock.asyncio.RLock works only inside an asyncio task")
    found: TaskOwner | None = loop.owners.get(task)
    if found is None:
        found = loop.owners[task] = TaskOwner(task)
    return found


class AsyncLease:
    """A lock as its asyncio task sees it. See `core.lease.Lease`: the attempts, tokens and depths are alike.

    A cancellation may strike at every await. Then the depth here stays as it was, and the loop brings Redis
    in line in the background.
    """

    def __init__(
        self, lock_server: AsyncLockServer, redis_keys: RedisKeys, task_owner: TaskOwner, lock_id: _LockId
    ) -> None:
        self.lock_server, self.redis_keys, self.lock_id = lock_server, redis_keys, lock_id
        self.owner = task_owner.owner
        self.depth = 0
        self.token = 0
        self.slot = 0  #: which of the places it has, with a limit
        self.limit = 1
        self.ttl = 0.0
        self.replicas = 0
        self.since = 0.0
        self.deadline = 0.0
        self.renew_until = math.inf
        self.lost: LockLost | None = None
        self._task_owner = task_owner
        self._attempt = ""
        self._request: asyncio.Task[Any] | None = None  # the last acquire
        self._renewer = renewer_of(lock_server)

    @property
    def held(self) -> bool:
        """Whether the owner holds the lock, by the local deadline."""
        return self.depth > 0 and self.lost is None and now() < self.deadline

    @property
    def log_fields(self) -> dict[str, object]:
        return about(self.redis_keys.key, self.owner, self.owner.task_id)

    @property
    def renewal(self) -> Renewal:
        """What to ask of Redis. The lease never gets longer than until `renew_until`."""
        ttl = min(self.ttl, self.renew_until - now())
        return Renewal(self.redis_keys, self.owner, self.token, ttl, self.replicas)

    @property
    def is_final(self) -> bool:
        """Whether it lasts until `renew_until`, so that no renewal can make it longer."""
        return self.deadline + margin(self.ttl) >= self.renew_until

    async def enter(self, ttl: float, replicas: int, place: Place | None, *, limit: int = 1) -> Busy | None:
        """Go one level deeper. Returns Busy if others hold the lock, and then has taken `place`."""
        self.ensure_not_lost()
        depth, ttl = self.depth, max(ttl, self.ttl) if self.depth else ttl
        limit = self.limit if depth else limit
        attempt = self._attempt if depth else self._task_owner.new_attempt()
        sent = now()
        request = self._request = self.lock_server.loop.spawn(
            self.lock_server.acquire(
                self.redis_keys,
                self.owner,
                depth + 1,
                ttl,
                attempt=attempt,
                replicas=0 if depth else replicas,
                place=place,
                limit=limit,
            )
        )
        try:
            reply = await outcome(self.redis_keys.key, request)
            if isinstance(reply, Taken):
                if depth == 0:
                    self.limit, self.slot = limit, reply.slot
                self._entered(depth + 1, attempt, token=reply.token, ttl=ttl, replicas=replicas, sent=sent)
                return None
        except BaseException:  # also a cancellation: Redis may have the lock as ours
            self._set_depth(depth)
            self.after_request(lambda: self._undo(request, depth, attempt, ttl))
            raise
        if isinstance(reply, Busy) and depth == 0:
            return reply
        raise self.lose("Redis did not have it any more when it was re-entered")

    async def leave(self) -> bool:
        """Go back one level; at depth 0 free the lock. Returns False if the task does not hold it."""
        if self.depth == 0:
            return False
        self.check_deadline()
        self._set_depth(self.depth - 1)
        release = Release(self.depth, fence=str(self.token))
        try:
            # Release a lost lock too: Redis may still have it, and no waiter should wait for it.
            reply = await self.lock_server.loop.uninterrupted(
                self.redis_keys.key, self.lock_server.release(self.redis_keys, self.owner, release)
            )
        except BaseException:
            self._free_later(release, self.deadline)
            raise
        if reply != ReleaseReply.RELEASED and self.lost is None:
            self.lose("Redis did not have it any more when it was released")
        return True

    async def extend(self, seconds: float) -> None:
        """Make the lease last at least `seconds` from now. Renewal goes on as before."""
        self.ensure_not_lost()
        sent = now()
        try:
            renewal = self.lock_server.renew([self.renewal._replace(ttl=seconds)])
            reply = (await self.lock_server.loop.uninterrupted(self.redis_keys.key, renewal))[0]
        except LockUnavailable:
            raise
        except Exception as error:
            raise LockUnavailable(self.redis_keys.key, brief(error)) from error
        if isinstance(reply, Exception):
            raise LockUnavailable(self.redis_keys.key, brief(reply)) from reply
        if not reply:
            raise self.lose("Redis did not have it any more when it was extended")
        self.renewed(sent, seconds)

    def renewed(self, sent: float, ttl: float) -> None:
        """Redis has confirmed a renewal that was sent at `sent`."""
        self.deadline = max(self.deadline, sent + ttl - margin(ttl))

    def check_deadline(self) -> None:
        """Past the local deadline the lock is lost, whatever Redis says later."""
        if self.lost is None and self.depth > 0 and now() >= self.deadline:
            self.lose("its lease ended before it was renewed")

    def ensure_not_lost(self) -> None:
        self.check_deadline()
        if self.lost is not None and self.depth > 0:
            raise self.lost

    def lose(self, reason: str) -> LockLost:
        """Mark the lock as lost, and log it once."""
        if self.lost is None:
            self.lost = LockLost(self.redis_keys.key, str(self.owner), reason)
            self._renewer.discard(self)
            logger.warning("%s", self.lost.summary, extra=self.log_fields)
        return self.lost

    def free_abandoned(self) -> None:
        """The asyncio task has ended without a release: free the lock."""
        logger.warning(
            "an asyncio task ended without releasing lock %r", self.redis_keys.key, extra=self.log_fields
        )
        self._set_depth(0)
        self._free_later(Release(fence=str(self.token)), self.deadline)

    def _entered(
        self, depth: int, attempt: str, *, token: int, ttl: float, replicas: int, sent: float
    ) -> None:
        if depth == 1:
            self.lost, self.deadline, self.replicas = None, 0.0, replicas
            self.since, self.renew_until = sent, math.inf
        self.ttl, self.token, self._attempt = ttl, token, attempt
        if depth == 1 or not self.replicas:  # no replica was asked whether it has the re-entry
            self.renewed(sent, ttl)
        if now() >= self.deadline:
            raise LockUnavailable(self.redis_keys.key, f"the answer took longer than the lease of {ttl} s")
        self._set_depth(depth)

    def _set_depth(self, depth: int) -> None:
        self.depth = depth
        self._task_owner.note(self)
        if depth and self.lost is None:
            self._renewer.add(self)
        else:
            self._renewer.discard(self)

    def after_request(self, do: Callable[[], object]) -> None:
        """Do it at once, and again at the end of the last acquire if its caller was cancelled before."""
        do()
        if self._request is not None and not self._request.done():
            self._request.add_done_callback(lambda _: do())

    def _undo(self, request: asyncio.Task[Any], depth: int, attempt: str, ttl: float) -> None:
        """Free what an abandoned acquire has taken, or takes when its request arrives late.

        A request that failed may still arrive after the release, so the release is repeated when the request
        would be too late.
        """
        if depth:
            self._free_later(Release(depth, fence=attempt), self.deadline)
            return
        patience = self.lock_server.patience + 0.1
        has_failed = request.done() and (request.cancelled() or request.exception() is not None)
        for later in (0.0, patience) if has_failed else (0.0,):
            self._free_later(Release(fence=attempt), now() + max(ttl, patience), later)

    def _free_later(self, release: Release, give_up: float, later: float = 0.0) -> None:
        lock_server, redis_keys, owner = self.lock_server, self.redis_keys, self.owner
        lock_server.loop.do_later(
            f"release lock {redis_keys.key!r}",
            lambda: lock_server.release(redis_keys, owner, release),
            give_up=give_up,
            later=later,
        )


class AsyncRenewer:
    """Renews the leases of one event loop on one server, each third of the ttl, in one round trip.

    It is a timer of the loop, and a short task for each round trip: no task waits while nothing is due, so
    none can die unnoticed, and none is left over when the loop ends.
    """

    def __init__(self, loop: RunningLoop) -> None:
        self._loop = loop
        self._due: dict[AsyncLease, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None

    def add(self, lease: AsyncLease) -> None:
        self._due[lease] = now() + lease.ttl / 3
        if self._timer is None or self._timer.when() > self._loop.loop.time() + lease.ttl / 3:
            self._plan()

    def discard(self, lease: AsyncLease) -> None:
        self._due.pop(lease, None)  # the timer stays: to find nothing to do costs less than a new one

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._due:
            seconds = max(0.0, min(self._due.values()) - now())
            self._timer = self._loop.loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._round is None or self._round.done():
            self._round = self._loop.spawn(self._renew_due())

    async def _renew_due(self) -> None:
        try:
            moment = now()
            batch = []
            for lease, due in list(self._due.items()):
                lease.check_deadline()  # a lost one is discarded
                if lease not in self._due:
                    continue
                if lease.is_final:
                    self._due[lease] = lease.deadline  # its loss is noticed then
                elif due <= moment + lease.ttl / 6:
                    batch.append(lease)
            if batch and any(self._due[lease] <= moment for lease in batch):
                await self._renew(batch)
        finally:  # also after a cancellation: the locks may be held for longer than that
            for lease, due in self._due.items():
                self._due[lease] = max(due, now() + 0.01)
            self._plan()

    async def _renew(self, batch: list[AsyncLease]) -> None:
        sent, renewals = now(), [lease.renewal for lease in batch]
        answers: list[bool | Exception]
        try:
            answers = await batch[0].lock_server.renew(renewals)
        except Exception as error:  # noqa: BLE001 - a failed round trip is a failure of each lease in it
            answers = [error] * len(batch)
        for lease, renewal, answer in zip(batch, renewals, answers, strict=True):
            if lease not in self._due or lease.token != renewal.token:
                continue  # released meanwhile
            if answer is True:
                lease.renewed(sent, renewal.ttl)
                self._due[lease] = sent + lease.ttl / 3
            elif answer is False:
                lease.lose("another client released or took it")
            else:
                text = "could not renew lock %r of %s, trying again: %s"
                logger.warning(text, lease.redis_keys.key, lease.owner, brief(answer), extra=lease.log_fields)
                self._due[lease] = min(now() + min(lease.ttl / 12, 1.0), lease.deadline)


def renewer_of(lock_server: AsyncLockServer) -> AsyncRenewer:
    loop = lock_server.loop
    found: AsyncRenewer | None = loop.renewers.get(hash(lock_server.identity))
    if found is None:
        found = loop.renewers[hash(lock_server.identity)] = AsyncRenewer(loop)
    return found
