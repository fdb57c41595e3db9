"""Tells the waiters of one event loop when it is their turn, over pub/sub."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from celery_rlock.aio.event_loop import RunningLoop
from celery_rlock.log import logger
from celery_rlock.server.clock import now
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Place
from celery_rlock.server.wakeups import PAUSES, SILENCE, TEST_MESSAGE, Waiters, WakeCallbacks


class AsyncWakeups(Waiters):
    """Hears, on a channel of this event loop, whose turn it is. See `server.wakeups.Wakeups`."""

    def __init__(
        self,
        loop: RunningLoop,
        find_servers: Callable[[], Awaitable[Mapping[str, Any]]],
        channels: str,
        wake: Callable[[RedisKeys, str], object],
    ) -> None:
        super().__init__(channels, wake)
        self._loop, self._find_servers = loop, find_servers
        self._supervisor: asyncio.Task[None] | None = None
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._hearing: set[str] = set()

    def add(self, place: Place, callbacks: WakeCallbacks) -> None:
        """Listen for this place until its turn comes or it is discarded."""
        self._note(place, callbacks)
        if self._supervisor is None or self._supervisor.done():
            self._supervisor = self._loop.spawn(self._supervise())

    async def _supervise(self) -> None:
        """Listen at every primary until there has been no waiter for a while."""
        try:
            while self._callbacks:
                await self._listen_at_all()
                await asyncio.sleep(SILENCE if self._hearing else PAUSES[-1])
        finally:
            for listener in self._listeners.values():
                listener.cancel()
            self._listeners.clear()
            self._hearing.clear()
            self.listening = False

    async def _listen_at_all(self) -> None:
        try:
            servers = await self._find_servers()
        except Exception as error:  # noqa: BLE001 - a Cluster that is down has no known primaries
            logger.debug("no server to subscribe at: %r", error)
            return
        for where in self._listeners.keys() - servers.keys():
            self._listeners.pop(where).cancel()
        for where, server in servers.items():
            listener = self._listeners.get(where)
            if listener is None or listener.done():
                self._listeners[where] = self._loop.spawn(self._listen_at(where, server))

    async def _listen_at(self, where: str, server: Any) -> None:
        """Subscribe, and subscribe again whenever the connection is lost."""
        failures = 0
        while True:
            pubsub = server.pubsub()
            try:
                await pubsub.subscribe(self._channel)
                await self._pass_messages_on(where, pubsub, server)
                failures = 0
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the waiters need a subscription
                failures += 1
                logger.debug("the subscription for released locks starts again: %r", error)
            finally:
                self._hearing.discard(where)
                self.listening = bool(self._hearing)
                with suppress(Exception):
                    await pubsub.aclose()
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])

    async def _pass_messages_on(self, where: str, pubsub: Any, server: Any) -> None:
        """Return when the subscription is dead: after some silence it does not hear its own message."""
        expects_message = True  # the confirmation of the subscription
        check_at = now() + SILENCE
        while True:
            message = await pubsub.get_message(timeout=max(0.001, check_at - now()))
            if message is not None:
                expects_message = False
                self._hearing.add(where)
                self.listening = True
                self._on_message(message)
            if now() < check_at:
                continue
            if expects_message or not await server.publish(self._channel, TEST_MESSAGE):
                return
            expects_message, check_at = True, now() + SILENCE
