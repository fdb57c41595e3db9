# ruff: noqa: ARG002 - the arguments are those of the LockServer protocol
"""The lock server of `rlock_enabled = False`: every lock is free, and no server is asked."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from celery_rlock.server.lock_server import Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import (
    PendingRequest,
    Place,
    Queued,
    RedeliveryReply,
    Release,
    ReleaseReply,
    Replacement,
    Reserved,
    Taken,
    Unqueued,
)
from celery_rlock.server.wakeups import Wakeups


class SwitchedOff:
    """Answers every verb with success."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.wakeups = Wakeups(dict, "", self.wake)  # it subscribes nowhere: no lock is ever busy

    @property
    def identity(self) -> Hashable:
        return SwitchedOff

    @property
    def patience(self) -> float:
        return 0.0

    def redis_keys(self, key: str) -> RedisKeys:
        return RedisKeys.of(key, self.prefix)

    def acquire(
        self,
        redis_keys: RedisKeys,
        owner: Owner,
        depth: int,
        ttl: float,
        task: str,
        *,
        attempt: str = "",
        replicas: int = 0,
        place: Place | None = None,
        since: int = 0,
        limit: int = 1,
        hold: float = 0,
    ) -> Taken:
        return Taken(0)

    def release(self, redis_keys: RedisKeys, owner: Owner, release: Release) -> ReleaseReply:
        return ReleaseReply.RELEASED

    def replace(  # noqa: PLR0917 - in the order of the script's arguments
        self,
        redis_keys: RedisKeys,
        holder: Owner | None,
        task: str,
        task_id: str,
        since: int,
        keep: float,
        *,
        comes_again: bool,
    ) -> Replacement:
        return Replacement()

    def renew(self, renewals: Iterable[Renewal]) -> list[bool | str | Exception]:
        return [True for _ in renewals]

    def join(self, places: Iterable[Place]) -> list[int | Exception]:
        return [0 for _ in places]

    def wait(self, places: Iterable[Place]) -> list[float | Exception]:
        return [0.0 for _ in places]

    def give_up(self, place: Place, *, pass_turn: bool = True) -> None:
        pass

    def pass_on(self, place: Place) -> bool:
        return False

    def wake(self, redis_keys: RedisKeys, instead_of: str = "") -> bool:
        return True

    def redelivery(self, redis_keys: RedisKeys, owner: Owner, *, mark: bool = True) -> RedeliveryReply:
        return RedeliveryReply.UNKNOWN

    def mark_ended(self, redis_keys: RedisKeys, owner: Owner) -> None:
        pass

    def mark_unacked(self, redis_keys: RedisKeys, owner: Owner, *, redelivered: bool = False) -> None:
        pass

    def mark_acked(self, redis_keys: RedisKeys, owner: Owner) -> None:
        pass

    def reserve(self, redis_keys: RedisKeys, request: PendingRequest, lease: float) -> Reserved:
        return Reserved(0)

    def queue(
        self,
        redis_keys: RedisKeys,
        request: PendingRequest,
        lease: float,
        *,
        older: str = "",
        retry_of: int = 0,
    ) -> Queued:
        return Queued(is_queued=False)

    def unqueue(
        self, redis_keys: RedisKeys, task_id: str, attempt: str = "", *, begins: bool = False
    ) -> Unqueued:
        return Unqueued()

    def superseded_by(self, redis_keys: RedisKeys, task_id: str) -> str:
        return ""

    def locked(self, redis_keys: RedisKeys) -> bool:
        return False

    def seal(self, what: str) -> str:
        return ""

    def token(self, redis_keys: RedisKeys, owner: Owner) -> int:
        return 0
