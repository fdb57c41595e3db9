"""The way of one process to its lock servers: a TCP proxy that cuts, delays, loses and reorders.

What one connection carries stays in order, as TCP promises. Requests of different connections overtake each
other: each piece of data waits for a time of its own, also when its sender has given up meanwhile, so that it
arrives late. `routes` makes the process connect to the proxies in place of the servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.support.processes import free_port

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = 65536
POLL = 0.02


class Lane:
    """One direction. With the chance `chance` a piece of data waits for a time between `low` and `high`."""

    def __init__(self, seed: str) -> None:
        self._choice = random.Random(seed)
        self.clear()

    def clear(self) -> None:
        """Forward everything at once."""
        self.chance = self.low = self.high = 0.0
        self.held = self.loses = False

    def slow(self, low: float, high: float, chance: float = 1.0) -> None:
        self.chance, self.low, self.high = chance, low, high

    async def pass_through(self) -> None:
        """Return when the data may go on."""
        if self.chance and self._choice.random() < self.chance:
            await asyncio.sleep(self._choice.uniform(self.low, self.high))
        while self.held:  # noqa: ASYNC110 - set on another thread, which cannot set an asyncio.Event
            await asyncio.sleep(POLL)


class Link:
    """A proxy in front of each port of `upstreams`, on the loop of `Links`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, upstreams: Iterable[int], seed: str) -> None:
        self._loop = loop
        self.requests, self.replies = Lane(f"{seed} requests"), Lane(f"{seed} replies")
        self.routes = {port: free_port() for port in upstreams}
        self._refuses = False
        self._open: set[asyncio.StreamWriter] = set()
        self._broken: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers = [self._run(self._listen(port, proxy)) for port, proxy in self.routes.items()]

    def cut(self) -> None:
        """Reset all connections. What has arrived at the proxy and waits there is lost."""
        self._loop.call_soon_threadsafe(self._cut)

    def refuse(self) -> None:
        """Reset all connections, and each new one, until `mend`."""
        self._refuses = True
        self.cut()

    def mend(self) -> None:
        """Forward everything at once again. Connections that have lost data are reset."""
        self.requests.clear()
        self.replies.clear()
        self._refuses = False
        self._loop.call_soon_threadsafe(self._drop_broken)

    def close(self) -> None:
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.close)
        self.cut()

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self, port: int, proxy: int) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            self._tasks.add(task)
            try:
                await self._serve(reader, writer, port)
            finally:
                self._tasks.discard(task)

        return await asyncio.start_server(serve, "127.0.0.1", proxy)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        if self._refuses:
            _reset(writer)
            return
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            _reset(writer)
            return
        for end in (writer, forth):
            with contextlib.suppress(OSError):  # cut meanwhile
                _of(end).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(end)
        try:
            await asyncio.gather(
                self._pump(reader, forth, self.requests), self._pump(back, writer, self.replies)
            )
        finally:
            for end in (writer, forth):
                self._open.discard(end)
                self._broken.discard(end)
                end.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, lane: Lane) -> None:
        """Forward until the source ends. The other direction goes on: the receiver may still answer."""
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                await lane.pass_through()
                if lane.loses:
                    self._broken.add(target)
                if target in self._broken:
                    continue  # a stream with a hole in it is worth nothing any more
                target.write(data)
                await target.drain()
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()

    def _cut(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    def _drop_broken(self) -> None:
        for writer in list(self._broken):
            _reset(writer)


class Links:
    """All links of a run, on one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._made: list[Link] = []

    def link(self, upstreams: Iterable[int], seed: str) -> Link:
        self._made.append(Link(self._loop, upstreams, seed))
        return self._made[-1]

    def close(self) -> None:
        for link in self._made:
            link.close()
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _of(writer: asyncio.StreamWriter) -> socket.socket:
    return writer.get_extra_info("socket")
