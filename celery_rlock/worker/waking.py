"""A worker step: what waits here for a lock is woken when it is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.utils.quorum_queues import detect_quorum_queues

from celery_rlock.core.log import logger
from celery_rlock.worker.waker import Waker

if TYPE_CHECKING:
    from celery import Celery

_waker: Waker | None = None
_said: set[str] = set()


def waker() -> Waker | None:
    """The waker of this worker, while it has a broker."""
    return _waker


class WakeWaiters(bootsteps.StartStopStep):
    """A waker for each connection to the broker: what is scheduled here does not outlive it."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        global _waker  # noqa: PLW0603 - a request does not know its consumer
        reason = why_not(consumer.app, consumer.connection.transport.driver_type)
        if reason is None:
            _waker = Waker(consumer)
        elif reason not in _said:
            _said.add(reason)
            logger.info("waiting tasks are not woken, their backoff alone serves: %s", reason)

    def stop(self, consumer: Any) -> None:  # noqa: ARG002 - the step's interface
        global _waker  # noqa: PLW0603
        if _waker is not None:
            _waker.stop()
            _waker = None


def why_not(app: Celery, broker: str) -> str | None:
    """Why waiters cannot be woken, with this kind of broker ("redis", "amqp" …); None where they can."""
    from celery.worker.request import Request  # noqa: PLC0415 - only a worker needs it

    if not hasattr(Request, "_eta_timer_entry"):
        return "that needs Celery 5.7"
    quorum, queue = detect_quorum_queues(app, broker)
    if quorum:
        return f"RabbitMQ itself delays what is sent to the quorum queue {queue!r}"
    return None
