"""The fleet: an embedded Valkey, three workers, and two beats for each round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from examples.embedded.celery_processes import CeleryProcesses, await_ready
from examples.embedded.processes import Process, Processes
from examples.embedded.valkey import Valkey

WORKERS = ("worker-1", "worker-2", "worker-3")
BEATS = ("beat-1", "beat-2")
ROUNDS = ("without_lock", "with_lock")


class Fleet:
    """A Valkey server and its workers. `client` is connected to the server."""

    def __init__(self, processes: Processes) -> None:
        """Returns when the server answers and all the workers are ready."""
        valkey = Valkey(processes)
        self.port, self.client = valkey.port, valkey.client
        self._celery = CeleryProcesses(processes, "examples.demo.app", {"DEMO_REDIS_URL": valkey.url})
        self._workers = {name: self._start_worker(name) for name in WORKERS}
        for worker in self._workers.values():
            await_ready(worker)

    def start_beat(self, name: str, round_name: str) -> Process:
        return self._celery.start_beat(f"{name}-{round_name}", {"DEMO_ROUND": round_name})

    def kill_worker(self, name: str) -> None:
        """kill -9. When this returns, the worker is dead and the server has closed its connections."""
        self._workers[name].kill()
        while self._connections(name):
            time.sleep(0.01)

    def replace_worker(self, name: str) -> None:
        """Start a new worker with the same name, as a deployment would. Does not wait until it is ready."""
        self._workers[name] = self._start_worker(name)

    @contextmanager
    def broker_paused(self) -> Iterator[None]:
        """Pause all writes to the server, for a second at most, so that no message moves."""
        self.client.client_pause(1000, all=False)
        try:
            yield
        finally:
            self.client.client_unpause()

    def waits_for_messages(self, name: str) -> bool:
        """Whether the worker is blocked in BRPOP, so that no message is on its way to it."""
        return any("b" in connection["flags"] for connection in self._connections(name))

    def _connections(self, name: str) -> list[dict[str, str]]:
        return [one for one in self.client.client_list() if one["name"] == name]

    def _start_worker(self, name: str) -> Process:
        options = ("-c", "1", "-Q", ",".join(ROUNDS))
        return self._celery.start_worker(name, *options, env={"DEMO_WORKER": name})
