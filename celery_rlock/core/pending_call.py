"""A call among the pending calls of its keys: published, and not started."""

from __future__ import annotations

import time
from functools import partial

from celery_rlock.core.background import background
from celery_rlock.errors import ConfigurationError, LockUnavailable
from celery_rlock.log import about, logger
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import QUEUED, Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Busy, PendingRequest, Queued, Reserved

#: How long a reservation lasts. A call that is not published by then takes no place.
RESERVATION = 5.0

#: A place that is not given up makes later calls believe that a run is to come.
_TRY_TO_GIVE_UP = 600.0

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


class PendingCall:
    """A call that is being published, with a place for each of its keys, or with none.

    It reserves its places before it is published, and is queued in them afterwards. So a caller that is told
    that it is queued can rely on it, and a call that cannot be published changes nothing.
    """

    def __init__(self, lock_server: LockServer, all_keys: list[RedisKeys], request: PendingRequest) -> None:
        self._lock_server, self._all_keys, self._request = lock_server, all_keys, request
        self._reserved: dict[RedisKeys, Reserved] = {}

    @property
    def is_reserved(self) -> bool:
        """Whether it has a place for each key."""
        return bool(self._reserved)

    @property
    def postponable(self) -> float | None:
        """Seconds until which the run may be postponed; None: as long as the call says."""
        limits = [reserved.postponable for reserved in self._reserved.values()]
        return min((limit for limit in limits if limit is not None), default=None)

    def reserve(self) -> list[Busy]:
        """Reserve a place for each key. If any has none, reserve none and return who has those.

        While another call is being published into the last place, this waits: that call may yet fail.
        """
        give_up, pause = now() + RESERVATION + 1, _FIRST_PAUSE
        while True:
            busy = self._try_to_reserve()
            if busy is not None or now() > give_up:
                return busy or []
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def queue(self, lease: float) -> list[tuple[RedisKeys, Queued]]:
        """The call is published: it is queued in its places for at most `lease` seconds."""
        return [
            (redis_keys, self._lock_server.queue(redis_keys, self._request, lease, older=reserved.older))
            for redis_keys, reserved in self._reserved.items()
        ]

    def withdraw(self) -> None:
        """The call is not published. Frees what it has reserved, and nothing that a later call reserves."""
        self._reserved = {}
        give_up_places(self._lock_server, self._all_keys, self._request.task_id, self._request.attempt)

    def _try_to_reserve(self) -> list[Busy] | None:
        """None: ask again soon."""
        request, busy, is_in_doubt = self._request, [], False
        try:
            for redis_keys in self._all_keys:
                reply = self._lock_server.reserve(redis_keys, request, RESERVATION)
                if isinstance(reply, Busy):
                    busy.append(reply)
                elif reply is None:
                    is_in_doubt = True
                else:
                    self._reserved[redis_keys] = reply
                    request = request._replace(order=reply.order)
        except BaseException:
            self.withdraw()
            raise
        if self._reserved and (busy or is_in_doubt):
            self.withdraw()
        return None if is_in_doubt else busy


def give_up_places(
    lock_server: LockServer, all_keys: list[RedisKeys], task_id: str, attempt: str = ""
) -> None:
    """The call with this id is not pending any more. If Redis does not answer, the background goes on."""
    for redis_keys in all_keys:
        try:
            lock_server.unqueue(redis_keys, task_id, attempt)
        except ConfigurationError as error:  # another program has written into the key
            logger.warning("task %s has no place among the pending calls: %s", task_id, error)
        except LockUnavailable as error:
            extra = about(redis_keys.key, Owner("", QUEUED, task_id), task_id)
            text = (
                "could not give up the place of task %s among the pending calls of %r, and keeps trying: %s"
            )
            logger.warning(text, task_id, redis_keys.key, error.reason, extra=extra)
            background.add(
                f"give up the place of {task_id} among the pending calls of {redis_keys.key!r}",
                partial(lock_server.unqueue, redis_keys, task_id, attempt),
                give_up=now() + _TRY_TO_GIVE_UP,
                server=lock_server.identity,
                first=True,
            )
