"""A worker step for the loss of the broker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker import state


class AnnounceCopies(bootsteps.StartStopStep):
    """What runs here and is not acknowledged when the broker is lost will be delivered again."""

    def stop(self, consumer: Any) -> None:  # noqa: ARG002 - the step's interface
        for request in list(state.active_requests):
            on_broker_lost = getattr(request, "on_broker_lost", None)
            if on_broker_lost is not None and request.task.acks_late:
                on_broker_lost()
