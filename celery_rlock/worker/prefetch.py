"""Keeps parked tasks from using up a prefetch count that Celery cannot raise."""

from __future__ import annotations

from typing import Any

from celery.bootsteps import RUN  # type: ignore[attr-defined]


class FixedPrefetch:
    """The prefetch count of a consumer, if it is fixed: with quorum queues, and from RabbitMQ 4 on.

    Elsewhere Celery raises the count by one for each task that waits for its ETA. RabbitMQ has given such a
    consumer its count once, and counts what it has not acknowledged. So when parked tasks have used up half
    of the count, this ends the consumer and starts another one. What was delivered before stays here, can be
    acknowledged, and does not count any more.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        is_rabbit = consumer.connection.transport.driver_type == "amqp"
        self._is_fixed = is_rabbit and getattr(consumer, "qos_global", None) is False
        self._counted: set[Any] = set()  #: the parked requests that RabbitMQ counts

    def add(self, request: Any) -> None:
        """This request is parked."""
        if self._is_fixed:
            self._counted.add(request)
            if self._is_used_up:
                self._consumer.call_soon(self._start_again)

    def discard(self, request: Any) -> None:
        """This request is parked no more."""
        self._counted.discard(request)

    @property
    def _is_used_up(self) -> bool:
        count: int = self._consumer.initial_prefetch_count  # 0: no limit
        return 0 < count <= 2 * len(self._counted)

    def _start_again(self) -> None:
        consumer = self._consumer
        if not self._is_used_up or consumer.blueprint.state != RUN:
            return
        self._counted.clear()
        tasks = consumer.task_consumer
        tasks.cancel()
        # Celery has raised the count for each scheduled task, and this has an effect on new consumers.
        tasks.qos(prefetch_count=consumer.initial_prefetch_count, apply_global=False)
        tasks.consume()
