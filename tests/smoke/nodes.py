"""Processes in the place of pytest-celery's Docker containers."""

from __future__ import annotations

import signal as signals
import uuid
from typing import Any

from pytest_celery import CeleryTestWorker, CeleryWorkerContainer, RedisContainer
from pytest_docker_tools.exceptions import ContainerFailed

from tests.support.daemon import Daemon
from tests.support.servers import Server
from tests.support.workers import Worker


class ProcessContainer:
    """The part of docker's Container that pytest-celery uses, for a daemon."""

    def __init__(self, daemon: Daemon, container_id: str | None = None) -> None:
        self.daemon = daemon
        self.id = container_id or new_id()
        self.name = daemon.name
        # No networks and no ports, so pytest-docker-tools has none to inspect.
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "127.0.0.1", "Env": []},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.daemon.running else "exited"

    def reload(self) -> None:
        """Do nothing: no attribute is cached."""

    def kill(self, signal: str | int | None = None) -> None:
        number = (
            signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal or signals.SIGKILL)
        )
        self.daemon.kill() if number == signals.SIGKILL else self.daemon.signal(number)

    def restart(self, timeout: float = 10) -> None:
        self.daemon.stop(timeout)
        self.daemon.started()

    def logs(self) -> bytes:
        return self.daemon.log.encode()

    def remove(self, *, force: bool = False) -> None:
        self.daemon.stop(0 if force else 10)


class ProcessBacked:
    """Asks the daemon itself whether it is ready; pytest-celery's own way polls once a second."""

    _container: ProcessContainer

    def ready(self) -> bool:
        if not self._container.daemon.running:
            raise ContainerFailed(self, f"{self._container.name} has exited")
        self._container.daemon.await_ready()
        return True

    def restart(self, timeout: float = 10) -> None:
        self._container.restart(timeout)


class ProcessRedis(ProcessBacked, RedisContainer):
    """A Valkey or Redis server."""

    def __init__(self, server: Server) -> None:
        super().__init__(ProcessContainer(server))
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url

    host_url = url

    @property
    def port(self) -> int:
        return self._server.port


class ProcessWorker(ProcessBacked, CeleryWorkerContainer):
    """A Celery worker on the shared queue and on one of its own, not yet ready when it is made."""

    def __init__(self, app: str, env: dict[str, str], concurrency: int = 2) -> None:
        container_id = new_id()
        self.own_queue = f"only-{container_id}"
        worker = Worker(
            app,
            concurrency=concurrency,
            queues=(self.worker_queue(), self.own_queue),
            hostname=f"{self.worker_name()}@{container_id}",  # as CeleryTestWorker.hostname() makes it
            env=env,
        )
        worker.launch()
        super().__init__(ProcessContainer(worker, container_id))


class ProcessWorkerNode(CeleryTestWorker):
    """Its `worker_queue` is the worker's own queue, so that a ping of each worker reaches that worker."""

    @property
    def worker_queue(self) -> str:
        return self.container.own_queue


def new_id() -> str:
    """As long as the part of a container's id that pytest-celery uses as a host name."""
    return uuid.uuid4().hex[:12]
