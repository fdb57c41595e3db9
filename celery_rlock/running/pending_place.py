"""The place of a call among the pending calls of its keys, when its message arrives in a worker."""

from __future__ import annotations

from contextlib import suppress

from celery_rlock.core.pending_call import RESERVATION, give_up_places
from celery_rlock.errors import LockUnavailable
from celery_rlock.options.options import Options
from celery_rlock.running.task_lock import CallLock
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import Owner, new_delivery
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import PendingRequest


class PendingPlace:
    """A call that has no place, for example because Redis was away, may do all this without harm."""

    def __init__(
        self, task: str, owner: Owner, options: Options, lock_server: LockServer, all_keys: list[RedisKeys]
    ) -> None:
        self._task, self._owner, self._options = task, owner, options
        self._lock_server, self._all_keys = lock_server, all_keys
        self.is_given_up = False

    def begin(self) -> str:
        """Give up the place, before `run()` begins: calls that are made from now on are queued behind it.

        Returns the id of the later call that has taken the place; empty if the run may begin. Raises
        LockUnavailable if Redis does not answer: then the run must not begin.
        """
        for redis_keys in self._all_keys:
            later = self._give_up(redis_keys)
            if later:
                self.free()
                return later
        self.is_given_up = True
        return ""

    def superseded_by(self) -> str:
        """The id of the later call that has taken the place; empty if none has, as far as Redis answers."""
        if self._options.duplicate == "replace":
            with suppress(LockUnavailable):
                for redis_keys in self._all_keys:
                    later = self._lock_server.superseded_by(redis_keys, self._owner.task_id)
                    if later:
                        self.free()
                        return later
        return ""

    def free(self) -> None:
        """The call ends without a run, unless it has given up its place to begin."""
        if not self.is_given_up:
            self.is_given_up = True
            give_up_places(self._lock_server, self._all_keys, self._owner.task_id)

    def queue_retry(self, lock: CallLock, locks: set[str], lease: float) -> None:
        """The retry of a run that still has these locks is published: it takes a place if there is one."""
        request = self._request(new_delivery())
        for held in lock.leases:
            if held.redis_keys.lock in locks:
                with suppress(LockUnavailable):  # then it is one more queued message
                    self._lock_server.queue(held.redis_keys, request, lease, retry_of=held.token)

    def _give_up(self, redis_keys: RedisKeys) -> str:
        task_id, replaces = self._owner.task_id, self._options.duplicate == "replace"
        reply = self._lock_server.unqueue(redis_keys, task_id, begins=replaces)
        while reply.reserved_by:  # its publisher has not said yet which calls this one supersedes
            queued = self._lock_server.queue(redis_keys, self._request(reply.reserved_by), RESERVATION)
            if queued.later:
                return queued.later
            reply = self._lock_server.unqueue(redis_keys, task_id, begins=replaces)
        return reply.later

    def _request(self, attempt: str) -> PendingRequest:
        return PendingRequest(
            self._owner.task_id,
            attempt,
            f"{self._owner.worker}/{self._owner.delivery}",
            self._task,
            self._options.pending_places,
            replace=self._options.duplicate == "replace",
        )


def superseded_text(later: str) -> str:
    """The reason in the result of a call whose place a later call has taken."""
    return f"superseded by {later}"
