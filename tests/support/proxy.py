"""A TCP proxy that loses requests and replies on purpose."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from tests.support.faults import CutConnection, Faults, Match, RawTraffic, RespTraffic, Rule
from tests.support.processes import free_port

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = 65536
POLL = 0.05
URLS = {"resp": "redis://127.0.0.1:{port}/0", "raw": "amqp://guest:guest@127.0.0.1:{port}//"}


class Proxy:
    """Listens on a port of its own in front of `port` on 127.0.0.1, from its creation until `close`.

    With `protocol="raw"` nothing is parsed: only `refuse`, `cut`, `accept`, `freeze` and `thaw` work.
    """

    def __init__(self, port: int, protocol: Literal["resp", "raw"] = "resp") -> None:
        self.port = free_port()
        self.url = URLS[protocol].format(port=self.port)
        self._upstream = port
        self._protocol = protocol
        self._faults = Faults()
        self._flowing = threading.Event()
        self._flowing.set()
        self._connections: list[Connection] = []
        self._listener: socket.socket | None = None
        self.accept()

    @property
    def seen(self) -> list[list[bytes]]:
        """The commands that came from clients, oldest first, each a list of its name and arguments."""
        return self._faults.seen

    def lose_reply(self, match: Match, how: Literal["close", "swallow"] = "close", times: int = 1) -> Rule:
        """The server executes the next `times` commands that match, and the client never gets the replies.

        "close": the proxy closes the connection in the place of the reply. "swallow": the client waits for a
        reply that does not come. The server executes the rest of the pipeline too.
        The rule's `left` says how many are still to come. Not for a connection that has subscribed.
        """
        return self._faults.add(Rule(match, how, times))

    def drop_request(self, match: Match, times: int = 1) -> Rule:
        """The next `times` commands that match do not reach the server, and the connection is closed."""
        return self._faults.add(Rule(match, "drop", times))

    def refuse(self) -> None:
        """Cut all connections, and refuse new ones until `accept`."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections; new ones are accepted as before."""
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.end()

    def accept(self) -> None:
        """Listen again on the same port."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listener.settimeout(POLL)
            self._acceptor = threading.Thread(target=self._accept_from, args=(self._listener,), daemon=True)
            self._acceptor.start()

    def freeze(self) -> None:
        """Accept connections and bytes, and forward nothing in either direction."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, first the bytes that were sent meanwhile, even when their sender has given up."""
        self._flowing.set()

    def close(self) -> None:
        """Refuse for good; no thread and no socket is left behind."""
        self.refuse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept_from(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream), timeout=5)
        except OSError:
            client.close()
            return
        traffic = RawTraffic() if self._protocol == "raw" else RespTraffic(self._faults)
        self._connections = [connection for connection in self._connections if connection.open]
        self._connections.append(Connection(client, server, traffic, self._flowing))


class Connection:
    """A client's connection and the one to the server, with a thread for each direction."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        traffic: RawTraffic | RespTraffic,
        flowing: threading.Event,
    ) -> None:
        self._client, self._server, self._flowing = client, server, flowing
        self._cut = threading.Event()
        for end in (client, server):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [
            threading.Thread(target=self._send_requests, args=(traffic.requests,), daemon=True),
            threading.Thread(target=self._send_replies, args=(traffic.replies,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def open(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Cut both sides and wait for the threads."""
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        self._cut.set()
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _send_requests(self, pick: Callable[[bytes], Iterable[bytes]]) -> None:
        if self._pump(self._client, self._server, pick):
            # The client has left: the server still has to read what it sent, so only this direction ends.
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)
        else:
            self.cut()

    def _send_replies(self, pick: Callable[[bytes], Iterable[bytes]]) -> None:
        self._pump(self._server, self._client, pick)
        self.cut()
        self._threads[0].join()
        self._client.close()
        self._server.close()

    def _pump(
        self, source: socket.socket, target: socket.socket, pick: Callable[[bytes], Iterable[bytes]]
    ) -> bool:
        """Forward until the source ends (True) or the connection is cut (False)."""
        try:
            while data := source.recv(CHUNK):
                self._wait_for_thaw()
                for frame in pick(data):
                    target.sendall(frame)
        except (OSError, CutConnection):
            return False
        return not self._cut.is_set()

    def _wait_for_thaw(self) -> None:
        while not self._flowing.wait(POLL):
            if self._cut.is_set():
                raise CutConnection
