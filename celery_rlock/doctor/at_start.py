"""The checks that a worker runs when it starts.

They are those of its settings, whether the lock server can be used, and whether it may evict locks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from celery import bootsteps

from celery_rlock import settings
from celery_rlock.doctor.catalogue import CHECKS, Check
from celery_rlock.doctor.setup import Setup
from celery_rlock.log import logger

#: The worker logs this one itself, with the reason.
_LOGGED_ELSEWHERE = {"waking"}

#: The checks of the lock server that a worker runs. The others are for operators.
_OF_SERVER = {"connection", "eviction"}


class CheckAtStart(bootsteps.StartStopStep):
    """Stops a worker whose settings cannot work, with ConfigurationError, before it takes any message.

    Problems that let the worker run are logged as warnings, each once.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        settings.server(worker.app)
        self._setup = Setup(worker.app, worker)
        warn_of_settings(self._setup)

    def start(self, worker: Any) -> None:  # noqa: ARG002 - the step's interface
        """Runs after the pool has forked, so that no child inherits half a thread."""
        warn_of_server(self._setup)

    def stop(self, worker: Any) -> None:
        """Nothing to stop: the thread ends by itself."""


def warn_of_settings(setup: Setup) -> None:
    """Log every problem that is visible without asking a server."""
    checks = [check for check in CHECKS if check.asks == "app" and check.name not in _LOGGED_ELSEWHERE]
    _warn_of(setup, checks)


def warn_of_server(setup: Setup) -> None:
    """Log, from another thread, if the lock server cannot be used, or if it may evict locks.

    A silent server takes seconds to be noticed, and the start of the worker does not wait for that.
    """
    checks = [check for check in CHECKS if check.name in _OF_SERVER]
    threading.Thread(target=_warn_of, args=(setup, checks), name="rlock-at-start", daemon=True).start()


def _warn_of(setup: Setup, checks: Iterable[Check]) -> None:
    for check in checks:
        for finding in check.findings(setup):
            if finding.todo and finding.at_start:
                logger.warning(
                    "%s; to do: %s (check %r of `celery rlock doctor`)",
                    finding.what,
                    finding.todo,
                    check.name,
                    extra={"check": check.name},
                )
