"""Where the nodes of the smoke tests run: in processes of this machine, or in Docker."""

from __future__ import annotations

import os

import docker
from docker.errors import DockerException

VARIABLE = "CELERY_RLOCK_SMOKE"


def docker_is_asked_for() -> bool:
    return os.environ.get(VARIABLE) == "docker"


def why_docker_does_not_answer() -> str | None:
    """None when a Docker engine answers, else the reason to skip."""
    try:
        docker.from_env().ping()
    except DockerException as error:
        return f"{VARIABLE}=docker, but no Docker engine answers: {error}"
    return None
