"""pytest-celery's own Docker fixtures, with a second worker and this library in the workers' volume."""

from __future__ import annotations

import pytest
from pytest_celery import DEFAULT_WORKER_CONTAINER_TIMEOUT, DEFAULT_WORKER_VOLUME, CeleryWorkerContainer
from pytest_docker_tools import container, fxtr

from tests.smoke.engine import why_docker_does_not_answer
from tests.support.daemon import ROOT

__all__ = ["default_worker_initial_content", "docker_engine", "second_worker", "second_worker_container"]


@pytest.fixture(scope="session", autouse=True)
def docker_engine():
    """Session scope: it runs before the first fixture that needs the engine."""
    if reason := why_docker_does_not_answer():
        pytest.skip(reason)


@pytest.fixture
def default_worker_initial_content(default_worker_initial_content):
    """The volume is on the workers' PYTHONPATH: the files of an installed wheel go beside the tasks."""
    return {**default_worker_initial_content, **library()}


def library() -> dict[str, bytes]:
    """The package's files as the wheel has them, by path."""
    python = {str(path.relative_to(ROOT)): path for path in (ROOT / "celery_rlock").rglob("*.py")}
    scripts = {f"celery_rlock/lua/{path.name}": path for path in (ROOT / "lua").glob("*.lua")}
    return {name: path.read_bytes() for name, path in {**python, **scripts}.items()}


second_worker_container = container(
    image="{celery_base_worker_image.id}",
    ports=fxtr("default_worker_ports"),
    environment=fxtr("default_worker_env"),
    network="{default_pytest_celery_network.name}",
    volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
    wrapper_class=CeleryWorkerContainer,
    timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
    command=fxtr("default_worker_command"),
)


@pytest.fixture
def second_worker(second_worker_container, default_worker_cls, default_worker_app):
    worker = default_worker_cls(second_worker_container, default_worker_app)
    yield worker
    worker.teardown()
