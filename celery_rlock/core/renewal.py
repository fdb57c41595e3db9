"""Renews the leases of all locks of this process, in batches, on one thread per server."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Protocol

from celery_rlock.core.background import Loop
from celery_rlock.errors import LockLost
from celery_rlock.log import logger
from celery_rlock.server.clock import now
from celery_rlock.server.failures import brief
from celery_rlock.server.forks import in_forked_child
from celery_rlock.server.lock_server import LockServer, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys

_ENDED = "its lease ended before it was renewed"


class Renewable(Protocol):
    """What the renewer needs of a lease."""

    lock_server: LockServer
    redis_keys: RedisKeys
    owner: Owner
    depth: int
    ttl: float
    deadline: float

    @property
    def renew_every(self) -> float: ...

    @property
    def renewal(self) -> Renewal: ...

    @property
    def is_final(self) -> bool: ...

    @property
    def log_fields(self) -> dict[str, object]: ...

    def is_abandoned(self) -> bool: ...

    def free_abandoned(self) -> None: ...

    def renewed(self, sent: float, ttl: float) -> None: ...

    def lose(self, reason: str) -> LockLost: ...

    def replaced(self, by: str) -> None: ...


class ServerRenewer:
    """Renews every lease on one server each third of its ttl or more often, until it is discarded or lost.

    After an error it tries again until the lease's own deadline. The leases are in a plain dict, whose single
    operations are atomic: a thread that takes a lock may be interrupted by a signal at any point.
    """

    def __init__(self) -> None:
        self.leases: dict[Renewable, float] = {}
        self._loop = Loop("rlock-renewal", self._tick)

    def add(self, lease: Renewable) -> None:
        due = self.leases[lease] = now() + lease.renew_every
        self._loop.call_by(due)

    def _tick(self) -> float:
        """Renew what is due. Leases that are due soon join, so that they share a round trip."""
        moment = now()
        leases = list(self.leases.items())
        if any(due <= moment for _, due in leases):
            self._renew([lease for lease, due in leases if due <= moment + lease.renew_every / 2])
        return min(list(self.leases.values()), default=math.inf) - now()

    def _renew(self, leases: list[Renewable]) -> None:
        batch = []
        for lease in leases:
            if lease.is_abandoned():
                lease.free_abandoned()
            elif now() < lease.deadline and not lease.is_final:
                batch.append(lease)
            else:
                self._postpone(lease, lease.deadline + 1)  # the watcher of the deadlines takes care of it
        if not batch:
            return
        sent = now()
        renewals = [lease.renewal for lease in batch]
        answers: list[bool | str | Exception]
        try:
            answers = batch[0].lock_server.renew(renewals)
        except Exception as error:  # noqa: BLE001 - a failed round trip is a failure of each lease in it
            answers = [error] * len(batch)
        for lease, renewal, answer in zip(batch, renewals, answers, strict=True):
            if lease.renewal.token == renewal.token:  # else the lock was released and taken again meanwhile
                self._note(lease, renewal, answer, sent)

    def _note(self, lease: Renewable, renewal: Renewal, answer: bool | str | Exception, sent: float) -> None:
        if answer is True or isinstance(answer, str):
            lease.renewed(sent, renewal.ttl)
            self._postpone(lease, sent + lease.renew_every)
            if isinstance(answer, str):
                lease.replaced(answer)
        elif answer is False:
            if self.leases.pop(lease, None) is not None:  # else it was released meanwhile
                lease.lose("another client released or took it")
        else:
            text = "could not renew lock %r of %s, trying again: %s"
            logger.warning(text, lease.redis_keys.key, lease.owner, brief(answer), extra=lease.log_fields)
            self._postpone(lease, now() + min(lease.ttl / 12, 1.0))

    def _postpone(self, lease: Renewable, due: float) -> None:
        if lease in self.leases:  # not released meanwhile
            self.leases[lease] = due
            if lease.depth == 0:  # released between the two lines: do not bring it back
                self.leases.pop(lease, None)


class Renewer:
    """Renews leases on all servers, each on a thread of its own, and watches the deadlines on another.

    A renewal may be waiting for an answer when a lease ends, so that thread cannot watch the deadlines.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child holds none of its parent's locks."""
        self._servers: dict[Hashable, ServerRenewer] = {}
        self._watcher = Loop("rlock-deadlines", self._watch)

    def add(self, lease: Renewable) -> None:
        server = self._servers.get(lease.lock_server.identity)
        if server is None:
            server = self._servers.setdefault(lease.lock_server.identity, ServerRenewer())
        server.add(lease)
        self._watcher.call_by(lease.deadline)

    def discard(self, lease: Renewable) -> None:
        server = self._servers.get(lease.lock_server.identity)
        if server is not None:
            server.leases.pop(lease, None)

    def _watch(self) -> float:
        first = math.inf
        for server in list(self._servers.values()):
            for lease in list(server.leases):
                if lease.deadline > now():
                    first = min(first, lease.deadline)
                elif server.leases.pop(lease, None) is not None:
                    lease.lose(_ENDED)
        return first - now()


renewer = Renewer()
in_forked_child(renewer.reset)
