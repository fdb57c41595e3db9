"""Who listens to a lock's ordinary life, that it is taken and left: whoever has a use for it.

A receiver costs every run some microseconds, so each is connected by the first run that it has something to
tell of. What is told when a lock is not to be had, or lost, always has its receivers.
"""

from __future__ import annotations

import logging
from typing import Any

from celery_rlock import events, logs, tracing
from celery_rlock.core.log import logger


def attend(request: Any, waited: float) -> None:
    """The call with this request is about to run, having waited for its lock so long. Raises nothing."""
    try:
        _attend(request, waited)
    except Exception:  # a tracer of the user's
        logger.exception("what happens to locks is not told")


def _attend(request: Any, waited: float) -> None:
    if waited or logger.isEnabledFor(logging.DEBUG):
        logs.listen()
    if events.are_wanted(request):
        events.listen()
    if tracing.recording_span() is not None:
        tracing.listen()
