"""What a worker looks at when it starts: what needs nobody's answer, and whether locks may be evicted."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from celery_rlock.checks.catalogue import CHECKS, Check
from celery_rlock.checks.setup import Setup
from celery_rlock.core.log import logger

#: The worker says by itself where nobody is woken.
_SAID_ELSEWHERE = {"waking"}


def warn_of_settings(setup: Setup) -> None:
    _warn_of(setup, [check for check in CHECKS if check.asks == "app" and check.name not in _SAID_ELSEWHERE])


def warn_of_eviction(setup: Setup) -> None:
    """Off the caller's path; nothing is said where the server does not answer: tasks will say it."""
    checks = [check for check in CHECKS if check.name == "eviction"]
    threading.Thread(target=_warn_of, args=(setup, checks), name="rlock-eviction", daemon=True).start()


def _warn_of(setup: Setup, checks: Iterable[Check]) -> None:
    for check in checks:
        for finding in check.findings(setup):
            if finding.todo:
                logger.warning(
                    "%s; to do: %s (check %r of `celery rlock doctor`)",
                    finding.what,
                    finding.todo,
                    check.name,
                    extra={"check": check.name},
                )
