"""Workers and beats of a Celery app, as processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from examples.embedded.processes import Process, Processes

REPOSITORY = Path(__file__).resolve().parents[2]
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class CeleryProcesses:
    """Starts `celery -A app` commands. `path` is the folder of the app's modules."""

    def __init__(
        self, processes: Processes, app: str, env: Mapping[str, str], path: Path = REPOSITORY
    ) -> None:
        self._processes = processes
        self._celery = (sys.executable, "-m", "celery", "-A", app)
        self._env = {**env, "PYTHONPATH": str(path)}

    def start_worker(self, name: str, *options: str, env: Mapping[str, str] | None = None) -> Process:
        """Does not wait for the worker; `await_ready` does."""
        options = ("-n", f"{name}@example", "-l", "INFO", *QUIET, *options)
        return self._processes.start(name, (*self._celery, "worker", *options), {**self._env, **(env or {})})

    def start_workers(self, names: tuple[str, ...], *options: str) -> list[Process]:
        """Returns when all workers are ready."""
        workers = [self.start_worker(name, *options) for name in names]
        for worker in workers:
            await_ready(worker)
        return workers

    def start_beat(self, name: str, env: Mapping[str, str] | None = None) -> Process:
        """Start a beat with its own schedule file. Does not wait for it."""
        options = (
            "--schedule",
            str(self._processes.directory / f"{name}.schedule"),
            "--pidfile",
            "",
            "-l",
            "INFO",
        )
        return self._processes.start(name, (*self._celery, "beat", *options), {**self._env, **(env or {})})


def await_ready(worker: Process) -> None:
    worker.wait_until(lambda: f"{worker.name}@example ready." in worker.log)
