"""A client that follows the primary which the sentinels name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from celery_rlock.core.quick import QuickRedis

#: In seconds; later when no sentinel answers.
_LOOK_EVERY, _LOOK_LATER = 1.0, 5.0

#: Seconds after which an answer may come from a server that slept through a failover.
_LONG = 0.25


class SentinelRedis(QuickRedis):
    """Asks a sentinel once a second, and after each answer that took long, who the primary is.

    One that was frozen or cut off knows nothing of its successor. Until the sentinels demote it, some ten
    seconds later, it takes writes that nobody else sees, and connections to it are still good.
    """

    def __init__(self, make_pool: Callable[[], redis.ConnectionPool]) -> None:
        super().__init__(make_pool)
        self._look_at = 0.0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._look_now_and_then()
        primary, sent = self._primary, monotonic()
        reply = super().execute_command(*args, **options)
        if monotonic() - sent > _LONG:
            self._look()
            if self._primary != primary:
                raise RedisConnectionError("the answer came from a server that is not the primary any more")
        return reply

    def pipeline(self, *args: Any, **options: Any) -> Any:
        self._look_now_and_then()
        return super().pipeline(*args, **options)

    @property
    def _primary(self) -> Any:
        """As a sentinel said last."""
        return self.connection_pool.master_address  # type: ignore[attr-defined]

    def _look_now_and_then(self) -> None:
        if monotonic() >= self._look_at:
            self._look()

    def _look(self) -> None:
        self._look_at = monotonic() + _LOOK_EVERY
        try:
            # It drops the pool's own idle connections when it is another one.
            primary = self.connection_pool.get_master_address()  # type: ignore[attr-defined]
        except RedisError:  # whom we know may still be there
            self._look_at = monotonic() + _LOOK_LATER
            return
        idle, self._idle = self._idle, deque()
        with suppress(IndexError):  # none is left, perhaps because another thread has taken the last one
            while connection := idle.popleft():
                if (connection.host, connection.port) == primary:
                    self._idle.append(connection)
                else:
                    self._drop(connection)
