"""What the locks keep for one event loop: background requests, and what to close when the loop ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from celery_rlock.errors import LockUnavailable
from celery_rlock.log import logger
from celery_rlock.server.clock import now

_PAUSE_AFTER_ERROR = 0.5
_TIME_TO_LEAVE = 1.0

T = TypeVar("T")


@dataclass(eq=False)
class Chore:
    """Something to do in the background, again and again until it succeeds or `give_up` has passed."""

    what: str
    do: Callable[[], Coroutine[Any, Any, object]]
    give_up: float


class RunningLoop:
    """The background work of the locks of one event loop. Only code that runs in the loop touches it.

    When the loop ends in the usual way (`asyncio.run`, uvicorn and others call `shutdown_asyncgens`), it does
    what is still to do, for a second at most, and closes the clients that were made for this loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.pid = loop, os.getpid()
        self.servers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  #: app → its lock server here
        self.owners: WeakKeyDictionary[asyncio.Task[Any], Any] = WeakKeyDictionary()
        # Kept alive by the leases and waiters that use them: a client that nothing uses can be collected.
        self.renewers: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.clients: WeakValueDictionary[tuple[int, str], Any] = WeakValueDictionary()  #: lock servers
        self.wakeups: WeakValueDictionary[tuple[int, str], Any] = WeakValueDictionary()
        self._chores: set[Chore] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._to_close: list[Callable[[], Awaitable[object]]] = []
        self._is_ending = False
        self._end = self._close_at_the_end()
        with suppress(StopIteration):
            self._end.__anext__().send(None)  # from now on the loop closes the generator when it ends

    async def uninterrupted(self, key: str, request: Coroutine[Any, Any, T]) -> T:
        """Await a request about a lock. If the caller is cancelled, the request itself goes on."""
        return await outcome(key, self.spawn(request))

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it in the background, and keep a reference to it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def do_later(
        self,
        what: str,
        do: Callable[[], Coroutine[Any, Any, object]],
        *,
        give_up: float,
        later: float = 0.0,
    ) -> None:
        """Do it in the background. After LockUnavailable, try again until `give_up`."""
        chore = Chore(what, do, give_up)
        self._chores.add(chore)
        if self._is_ending:
            return  # `_close` does it
        if later:
            self.loop.call_later(later, self._start, chore)
        else:
            self._start(chore)

    def close_at_end(self, close: Callable[[], Awaitable[object]]) -> None:
        self._to_close.append(close)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that awaits the task sees it; a cancelled caller does not want it

    def _start(self, chore: Chore) -> None:
        if chore in self._chores:
            self.spawn(self._do(chore))

    async def _do(self, chore: Chore) -> None:
        try:
            await chore.do()
        except LockUnavailable as error:
            if now() < chore.give_up:
                self.loop.call_later(_PAUSE_AFTER_ERROR, self._start, chore)
                return
            logger.warning("could not %s: %s", chore.what, error)
        except asyncio.CancelledError:  # all tasks of the loop were cancelled; perhaps it does not end
            self.loop.call_later(_PAUSE_AFTER_ERROR, self._start, chore)
            raise
        except Exception:
            logger.exception("could not %s", chore.what)
        self._chores.discard(chore)

    async def _close_at_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._close()

    async def _cancel_all(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_TIME_TO_LEAVE)

    async def _close(self) -> None:
        if _running.get(self.loop) is self:
            del _running[self.loop]
        self._is_ending = True
        await self._cancel_all()
        if self._chores:
            await asyncio.wait({self.spawn(chore.do()) for chore in self._chores}, timeout=_TIME_TO_LEAVE)
        await self._cancel_all()
        for close in self._to_close:
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - the loop ends, and so do the connections
                logger.debug("could not close a client: %r", error)


async def outcome(key: str, request: asyncio.Task[T]) -> T:
    """Await a request that runs as a task of its own. If the caller is cancelled, the request itself goes on.

    An interruption during the greeting of a new connection would leave a reply unread, and redis-py would
    use that connection again (8.1).
    """
    await asyncio.wait({request})
    if request.cancelled():  # not the caller was cancelled, but all tasks of the loop
        raise LockUnavailable(key, "the request was cancelled")
    return request.result()


_running: dict[asyncio.AbstractEventLoop, RunningLoop] = {}


def running_loop() -> RunningLoop:
    """The RunningLoop of the event loop that this code runs in."""
    loop = asyncio.get_running_loop()
    found = _running.get(loop)
    if found is None or found.pid != os.getpid():
        for other in [other for other in list(_running) if other.is_closed()]:
            _running.pop(other, None)
        found = _running[loop] = RunningLoop(loop)
    return found
