"""pytest-celery's own fixtures on processes of this machine, which end with the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.smoke.nodes import ProcessRedis, ProcessWorker, ProcessWorkerNode
from tests.support.daemon import ROOT
from tests.support.servers import DEFAULT_KIND, Server, available_kinds

__all__ = [
    "default_redis_backend",
    "default_redis_broker",
    "default_worker_cls",
    "default_worker_container",
    "default_worker_container_cls",
    "second_worker",
    "smoke_server",
    "worker_directory",
    "worker_env",
]


@pytest.fixture
def smoke_server():
    """One server for messages, results and locks."""
    if not available_kinds():
        pytest.skip("neither a Valkey nor a Redis server is installed")
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture
def default_redis_broker(smoke_server):
    return ProcessRedis(smoke_server)


@pytest.fixture
def default_redis_backend(smoke_server):
    return ProcessRedis(smoke_server)


@pytest.fixture
def default_worker_cls():
    return ProcessWorkerNode


@pytest.fixture
def default_worker_container_cls():
    return ProcessWorker


@pytest.fixture
def worker_directory(default_worker_initial_content, tmp_path):
    """The contents of a worker's Docker volume: pytest-celery's app, our tasks and this test's URLs."""
    for name, content in default_worker_initial_content.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


@pytest.fixture
def worker_env(default_worker_env, worker_directory: Path):
    return {**default_worker_env, "PYTHONPATH": os.pathsep.join([str(worker_directory), str(ROOT)])}


@pytest.fixture
def default_worker_container(worker_env, default_worker_container_cls):
    yield from _worker(default_worker_container_cls, worker_env)


@pytest.fixture
def second_worker(worker_env, default_worker_container_cls, default_worker_cls, default_worker_app):
    for container in _worker(default_worker_container_cls, worker_env):
        yield default_worker_cls(container, default_worker_app)


def _worker(container_cls: type[ProcessWorker], env: dict[str, str]):
    container = container_cls("app", env)
    yield container
    container._container.remove(force=True)
