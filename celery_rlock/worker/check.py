"""A worker does not start with settings that no lock can work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_rlock import settings

if TYPE_CHECKING:
    from celery import Celery


class CheckSettings(bootsteps.Step):
    """Raises ConfigurationError before the worker has taken any message."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        settings.server(worker.app)
        super().__init__(worker, **kwargs)


def install(app: Celery) -> None:
    app.steps["worker"].add(CheckSettings)
