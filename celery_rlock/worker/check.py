"""A worker does not start with settings that no lock can work with."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.utils.imports import symbol_by_name

from celery_rlock import settings
from celery_rlock.core.log import logger


class CheckSettings(bootsteps.Step):
    """Raises ConfigurationError before the worker has taken any message."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        settings.server(worker.app)
        for task in worker.app.tasks.values():
            if hasattr(task, "_lock_plan"):
                _warn_of_bypass(task)
        super().__init__(worker, **kwargs)


def _warn_of_bypass(task: Any) -> None:
    from celery_rlock.worker.request import LockedRequestMixin  # noqa: PLC0415 - it needs Celery's worker

    request = symbol_by_name(task.Request)
    if not issubclass(request, LockedRequestMixin):
        logger.warning(
            "the Request class %s of task %s bypasses celery-rlock: when a pool child dies its lock stays "
            "until the lease ends; derive it from celery_rlock.worker.request.LockedRequestMixin too",
            request.__qualname__,
            task.name,
        )
