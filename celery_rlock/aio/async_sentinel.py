"""An asyncio client that follows the primary that the sentinels name, and doubts an old one."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from celery_rlock.server.clock import now

#: As in server/sentinel.py.
_ASK_EVERY, _ASK_LATER, _SLOW, _TRUST_NEWS = 1.0, 5.0, 0.25, 5.0
_PROMOTING, _SWITCHED, _ABORTED = (
    "+failover-state-send-slaveof-noone",
    "+switch-master",
    "-failover-abort-*",
)


class AsyncSentinelRedis(Redis):
    """Trusts an answer only if, by what the sentinels said, it came from the primary.

    It asks a sentinel once a second, and after each slow answer, which server is the primary. Between two
    questions it listens to every sentinel's news about failovers. See `server.sentinel.SentinelRedis`.
    """

    def __init__(self, pool: SentinelConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._sentinels: Any = pool
        self._ask_at = 0.0
        self._refuse_until, self._expected = 0.0, None
        self._listeners: dict[Any, asyncio.Task[None]] = {}

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        primary, sent = await self.trusted_primary(), now()
        answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        await self.check(primary, sent)
        return answer

    async def trusted_primary(self) -> object:
        if now() >= self._ask_at or self._is_contradicted(self._sentinels.master_address):
            await self._ask()
            self._refuse_unless(self._sentinels.master_address)
        return self._sentinels.master_address

    async def check(self, primary: object, sent: float) -> None:
        """Raise a ConnectionError unless the answer to a request sent to `primary` counts."""
        await asyncio.sleep(0)  # let the listeners read what has arrived
        if now() - sent > _SLOW:
            await self._ask()
        self._refuse_unless(primary)

    def _refuse_unless(self, primary: object) -> None:
        current = self._sentinels.master_address
        if self._is_contradicted(primary) or (primary is not None and current != primary):
            raise RedisConnectionError("the sentinels replace the primary, so its answer does not count")

    def _is_contradicted(self, primary: object) -> bool:
        return now() < self._refuse_until and primary != self._expected

    async def _ask(self) -> None:
        self._ask_at = now() + _ASK_EVERY
        self._listen()
        try:
            # The pool drops its idle connections when the primary has changed.
            await self._sentinels.get_master_address()
        except RedisError:  # no sentinel answers: the primary that we know may still work
            self._ask_at = now() + _ASK_LATER

    def _listen(self) -> None:
        for sentinel in self._sentinels.sentinel_manager.sentinels:
            listener = self._listeners.get(sentinel)
            if listener is None or listener.done():
                self._listeners[sentinel] = asyncio.get_running_loop().create_task(self._hear(sentinel))

    async def _hear(self, sentinel: Redis) -> None:
        subscription: Any = sentinel.pubsub()
        try:
            await subscription.psubscribe(_PROMOTING, _SWITCHED, _ABORTED)
            while now() < self._ask_at + _ASK_LATER:  # else the client is not in use any more
                message = await subscription.get_message(timeout=_ASK_LATER)
                if message is not None and message["type"] == "pmessage":
                    self._note(_text(message["channel"]), _text(message["data"]).split())
        except (RedisError, OSError):
            await asyncio.sleep(_ASK_EVERY)
        finally:
            await subscription.aclose()

    def _note(self, event: str, words: list[str]) -> None:
        if self._sentinels.service_name not in words:
            return  # these sentinels watch other primaries too
        if event == _SWITCHED:  # its words are: name, old host, old port, new host, new port
            self._expect((words[3], int(words[4])))
        elif event == _PROMOTING:
            self._expect(None)
        else:
            self._refuse_until = 0.0

    def _expect(self, primary: Any) -> None:
        self._expected, self._refuse_until = primary, now() + _TRUST_NEWS

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        for listener in self._listeners.values():
            listener.cancel()
        await super().aclose(close_connection_pool)
        await self._sentinels.aclose()
        for sentinel in self._sentinels.sentinel_manager.sentinels:
            await sentinel.aclose()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
