"""What this process knows about one owner's hold on one key."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import partial

from celery_rlock.core.background import background
from celery_rlock.core.renewal import renewer
from celery_rlock.errors import LockLost, LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import LockServer, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy, Place, Release, ReleaseReply, Taken

LostCallback = Callable[[LockLost], None]

#: Called with the id of the task that replaces the owner's.
ReplacedCallback = Callable[[str], None]

#: Keeps the leases of this process alive while they are held.
_held: set[Lease] = set()


class Lease:
    """A lock as its owner sees it: the depth, the token, and the deadline by the local clock.

    Each ownership has an attempt number, which its owner chooses before it asks, and a token, which Redis
    chooses. A release or renewal carries one of them, so that one which arrives late touches no later
    ownership. Depths go to Redis as absolute numbers, so each request may be repeated.

    An exception may strike at any point, also from a signal handler. Then the depth here stays as it was, and
    a background job brings Redis in line.
    """

    def __init__(
        self,
        lock_server: LockServer,
        redis_keys: RedisKeys,
        owner: Owner,
        new_attempt: Callable[[], str],
        *,
        task: str = "",
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lock_server, self.redis_keys, self.owner, self.task = lock_server, redis_keys, owner, task
        self.is_abandoned = is_abandoned  #: whether the owner is a thread that has ended
        self.depth = 0
        self.token = 0
        self.slot = 0  #: which of the places it has, with a limit
        self.limit = 1
        self.ttl = 0.0
        self.replicas = 0  #: replicas that must have each renewal, as they had the acquire
        self.since = 0.0
        self.deadline = 0.0
        self.renew_until = math.inf
        self.lost: LockLost | None = None
        self.longest_silence = (
            math.inf
        )  #: renew at least so often, to learn soon that another task replaces it
        self._on_replaced: ReplacedCallback | None = None
        self._new_attempt, self._attempt = new_attempt, ""
        self._on_lost: tuple[LostCallback, ...] = ()
        self.before_raising: Callable[[], None] = lambda: None  #: the caller gets LockLost next
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # threads of one execution share the lease

    @property
    def held(self) -> bool:
        """Whether the owner holds the lock, by the local deadline."""
        return self.depth > 0 and self.lost is None and now() < self.deadline

    @property
    def renew_every(self) -> float:
        return min(self.ttl / 3, self.longest_silence)

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
        """Whether it lasts until `renew_until`, and no renewal has anything else to tell the owner."""
        return self.longest_silence == math.inf and self.deadline + margin(self.ttl) >= self.renew_until

    def enter(
        self,
        ttl: float,
        replicas: int = 0,
        place: Place | None = None,
        since: int = 0,
        *,
        limit: int = 1,
        hold: float = 0,
    ) -> Busy | None:
        """Go one level deeper. Returns Busy if as many others as may hold the lock, else None.

        If the lock is busy, take `place` in line. `since` is when a waiting task first found the lock busy.
        The first level counts only when `replicas` replicas have it. Its `limit` is how many owners may hold
        the lock; with one above 1, the place stays taken for at least `hold` seconds.
        """
        with self._mutex:
            self.ensure_not_lost()
            depth, ttl = self.depth, max(ttl, self.ttl) if self.depth else ttl
            limit = self.limit if depth else limit
            attempt = self._attempt if depth else self._new_attempt()
            sent = now()
            try:
                reply = self.lock_server.acquire(
                    self.redis_keys,
                    self.owner,
                    depth + 1,
                    ttl,
                    self.task,
                    attempt=attempt,
                    replicas=0 if depth else replicas,
                    place=place,
                    since=since,
                    limit=limit,
                    hold=hold,
                )
                if isinstance(reply, Taken):
                    if depth == 0:
                        self.replicas, self.limit, self.slot = replicas, limit, reply.slot
                    self._entered(depth + 1, attempt, reply.token, ttl, sent)
                    return None
            except BaseException:
                self._set_depth(depth)
                if depth == 0:
                    self._abandon(attempt, ttl)
                else:
                    self._free_later(Release(depth, fence=attempt))
                raise
            if isinstance(reply, Busy) and depth == 0:
                return reply
            raise self._raised(self.lose("Redis did not have it any more when it was re-entered"))

    def leave(self, release: Release | None = None, *, completely: bool = False) -> bool:
        """Go back one level, or all of them; at depth 0 free the lock as `release` says.

        Returns whether the owner has left. It has not if it was not in, or if an early release came too
        early. If the server cannot be told, LockUnavailable is raised, and a background job goes on trying to
        free the lock until its lease has ended. After a failed early release the lock counts as held.
        """
        if self._pid != os.getpid():
            return True  # a forked child must not touch its parent's locks
        with self._mutex:
            before = self.depth
            if before == 0:
                return False
            self.check_deadline()
            depth = 0 if completely else before - 1
            release = release or Release()
            fence = self._attempt if release.unused else str(self.token)  # the attempt says so to Redis
            fenced = release._replace(depth=depth, fence=fence)
            try:
                self._set_depth(depth)
                if depth == 0:
                    renewer.discard(self)
                # Release a lost lock too: Redis may still have it, and no task should wait for it.
                reply = self.lock_server.release(self.redis_keys, self.owner, fenced)
            except BaseException:
                if fenced.early:
                    self._hold_on(before)
                elif depth == 0:
                    self._free_later(fenced)
                raise
            if reply == ReleaseReply.STILL_HELD:
                self._hold_on(before)
                return False
            if reply != ReleaseReply.RELEASED and self.lost is None:
                self.lose("Redis did not have it any more when it was released")
            return True

    def extend(self, seconds: float) -> None:
        """Make the lease last at least `seconds` from now. Renewal goes on as before."""
        self.ensure_not_lost()
        sent = now()
        reply = self.lock_server.renew([self.renewal._replace(ttl=seconds)])[0]
        if isinstance(reply, Exception):
            raise LockUnavailable(self.redis_keys.key, str(reply)) from reply
        if not reply:
            raise self._raised(self.lose("Redis did not have it any more when it was extended"))
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
            raise self._raised(self.lost)

    def _raised(self, lost: LockLost) -> LockLost:
        self.before_raising()
        return lost

    def on_lost(self, callback: LostCallback) -> None:
        """Call it when the lock is lost, also if that has already happened."""
        self._on_lost = (*self._on_lost, callback)
        if self.lost is not None and self.depth > 0:
            _notify((partial(callback, self.lost),))

    def forget_callback(self, callback: LostCallback) -> None:
        self._on_lost = tuple(other for other in self._on_lost if other is not callback)

    def on_replaced(self, callback: ReplacedCallback | None) -> None:
        """Call it when another task replaces the owner's."""
        self._on_replaced = callback

    def replaced(self, by: str) -> None:
        """Another task replaces the owner's, which keeps the lock until it has ended. Notify once."""
        callback, self._on_replaced = self._on_replaced, None
        if callback is not None:
            _notify((partial(callback, by),))

    def lose(self, reason: str) -> LockLost:
        """Mark the lock as lost, and notify once."""
        if self.lost is None:
            self.lost = LockLost(self.redis_keys.key, str(self.owner), reason, self.task)
            renewer.discard(self)
            _notify(tuple(partial(callback, self.lost) for callback in self._on_lost))
        return self.lost

    def free_abandoned(self) -> None:
        """The owner's thread has ended without a release: free the lock."""
        renewer.discard(self)
        logger.warning("a thread ended without releasing lock %r", self.redis_keys.key, extra=self.log_fields)
        self._free_later(Release(fence=str(self.token)))

    def _entered(self, depth: int, attempt: str, token: int, ttl: float, sent: float) -> None:
        if depth == 1:
            self.lost, self.deadline, self.since, self.renew_until = None, 0.0, sent, math.inf
        self.ttl, self.token, self._attempt = ttl, token, attempt
        if depth == 1 or not self.replicas:  # no replica was asked whether it has the re-entry
            self.renewed(sent, ttl)
        self._set_depth(depth)
        renewer.add(self)
        if now() >= self.deadline:
            renewer.discard(self)
            raise LockUnavailable(self.redis_keys.key, f"the answer took longer than the lease of {ttl} s")

    def _free_later(self, release: Release) -> None:
        free_later(self.lock_server, self.redis_keys, self.owner, release, give_up=self.deadline)

    def _set_depth(self, depth: int) -> None:
        self.depth = depth
        if depth:
            _held.add(self)
        else:
            _held.discard(self)

    def _hold_on(self, depth: int) -> None:
        self._set_depth(depth)
        renewer.add(self)

    def _abandon(self, attempt: str, ttl: float) -> None:
        """An acquire has failed, and Redis may have the lock as ours."""
        renewer.discard(self)
        undo_acquire(self.lock_server, self.redis_keys, self.owner, attempt, ttl)


def held_leases() -> list[Lease]:
    """All leases that this process holds now."""
    return list(_held)


def undo_acquire(
    lock_server: LockServer, redis_keys: RedisKeys, owner: Owner, attempt: str, ttl: float
) -> None:
    """Free what a failed acquire has taken, or takes when its request arrives late. Frees no other ownership.

    The request may arrive after the release, so the release is repeated when the request would be too late.
    """
    patience = lock_server.patience + 0.1
    for later in (0.0, patience):
        give_up = now() + max(ttl, patience)
        free_later(lock_server, redis_keys, owner, Release(fence=attempt), give_up=give_up, later=later)


def free_later(
    lock_server: LockServer,
    redis_keys: RedisKeys,
    owner: Owner,
    release: Release,
    *,
    give_up: float,
    later: float = 0.0,
) -> None:
    """Release in the background, `later` seconds from now, and go on trying until `give_up`."""
    background.add(
        f"release lock {redis_keys.key!r}",
        partial(lock_server.release, redis_keys, owner, release),
        give_up=give_up,
        not_before=now() + later if later else 0.0,
        server=lock_server.identity,
        first=True,
    )


def _notify(callbacks: tuple[Callable[[], None], ...]) -> None:
    """On a thread of its own, because the caller may have other locks to renew."""
    if callbacks:
        threading.Thread(target=_call_all, args=(callbacks,), name="rlock-lost", daemon=True).start()


def _call_all(callbacks: tuple[Callable[[], None], ...]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            logger.exception("a callback for a lost or replaced lock failed")


def margin(ttl: float) -> float:
    """How far the local clock and the server's may drift apart during a lease."""
    return ttl * 0.01 + 0.002
