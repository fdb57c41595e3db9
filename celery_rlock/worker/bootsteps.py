"""Steps of the worker's consumer: wake waiters, and announce redeliveries when the broker is lost."""

from __future__ import annotations

from collections import deque
from typing import Any

from celery import bootsteps
from celery.bootsteps import CLOSE  # type: ignore[attr-defined]
from celery.worker import state

from celery_rlock.log import logger
from celery_rlock.running.reschedule import CAN_BE_WOKEN
from celery_rlock.server.clock import now
from celery_rlock.worker.waker import Waker

_ACKNOWLEDGED_LATELY = 30.0

_waker: Waker | None = None


def waker() -> Waker | None:
    """The waker of this worker, while it has a broker."""
    return _waker


class WakeWaiters(bootsteps.StartStopStep):
    """Makes a waker for each connection to the broker: scheduled tasks do not outlive the connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        global _waker  # noqa: PLW0603 - a request does not know its consumer
        if CAN_BE_WOKEN:
            _waker = Waker(consumer)
        elif not consumer.restart_count:
            logger.info("waiting tasks are not woken, they retry with backoff: that needs Celery 5.7")

    def stop(self, consumer: Any) -> None:
        global _waker  # noqa: PLW0603
        if _waker is not None:
            _waker.stop(give_back=consumer.blueprint.state == CLOSE)
            _waker = None


#: The last requests with `acks_late` that were acknowledged, and when, oldest first.
_acknowledged: deque[tuple[float, Any]] = deque(maxlen=500)


def note_acknowledged(request: Any) -> None:
    """The worker has sent the acknowledgement of this request, and does not know whether it arrives."""
    moment = now()
    while _acknowledged and _acknowledged[0][0] < moment - _ACKNOWLEDGED_LATELY:
        _acknowledged.popleft()
    _acknowledged.append((moment, request))


class AnnounceRedeliveries(bootsteps.StartStopStep):
    """When the broker is lost, it redelivers the tasks that were not acknowledged.

    An acknowledgement that was sent shortly before may not have arrived.
    """

    def stop(self, consumer: Any) -> None:
        oldest = now() - _ACKNOWLEDGED_LATELY
        lately = [request for when, request in reversed(_acknowledged) if when >= oldest]
        _acknowledged.clear()
        if consumer.blueprint.state == CLOSE:  # the worker ends, and closes its connection in good order
            lately = []
        for request in (*state.active_requests, *lately):
            on_broker_lost = getattr(request, "on_broker_lost", None)
            if on_broker_lost is not None and request.task.acks_late:
                on_broker_lost()
