"""A worker does not start with settings that no lock can work with, and warns of those that will hurt."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_rlock import settings


class CheckSettings(bootsteps.StartStopStep):
    """Raises ConfigurationError before the worker has taken any message."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        # Only a worker needs them, and they need LockedTask.
        from celery_rlock.checks import setup, start  # noqa: PLC0415

        super().__init__(worker, **kwargs)
        settings.server(worker.app)
        self._setup = setup.Setup(worker.app, worker)
        start.warn_of_settings(self._setup)

    def start(self, worker: Any) -> None:  # noqa: ARG002 - the step's interface
        """After the pool has forked: no child is to have half a thread."""
        from celery_rlock.checks import start  # noqa: PLC0415

        start.warn_of_eviction(self._setup)

    def stop(self, worker: Any) -> None:
        """The thread ends by itself."""
