"""A queue, the pods that consume it, and the load that keeps them busy."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass

from tests.faults.kubernetes.pods import Deployment, Node, Pod
from tests.faults.load import TASKS, Journal, Load, Report
from tests.support.daemon import show
from tests.support.fleet import redelivered_after
from tests.support.table import Table

ENOUGH_GRACE = 60.0  # seconds in which every run ends, also on a loaded machine
CONCURRENCY = 2
SETTLE = 1.5  # seconds in which a surplus run would complete
REDELIVERY_AFTER = 6  # seconds, with Redis as the broker

EVENTS = Table(
    "what the fleet went through",
    "fleet",
    "CELERY_RLOCK_FLEET_TABLE",
    (
        "event",
        "broker",
        "published",
        "completed",
        "overlaps",
        "lost",
        "completed twice",
        "runs cut short",
        "longest gap, s",
    ),
)


@dataclass
class EventRow:
    """A row of the table in docs/kubernetes.md."""

    event: str
    broker: str
    report: Report

    def cells(self) -> tuple[str, ...]:
        report = self.report
        counts = (report.published, report.completed, report.overlaps, report.lost)
        counts += (report.completed_twice, report.cut_short)
        return (self.event, self.broker, *map(str, counts), f"{report.longest_gap:.1f}")


class PodFleet:
    """Three nodes and one Deployment. A test changes `settings` and `env` before it starts pods."""

    def __init__(self, broker, redis, files) -> None:
        self.queue = f"queue-{uuid.uuid4().hex[:6]}"
        self.broker, self.journal = broker, Journal(files)
        self.nodes = [Node(f"node-{number}") for number in range(3)]
        self.deployment = Deployment(self.pod, self.nodes, grace=ENOUGH_GRACE)
        self.settings, self.env = {}, {}
        self._redis, self._files = redis, files

    def pod(self, redis_url=None, **options) -> Pod:
        """A pod that is not launched yet; `redis_url` is the address at which it reaches Redis."""
        settings = {**self.settings, **redelivered_after(REDELIVERY_AFTER, self.broker.kind)}
        settings["rlock_url"] = redis_url or self._redis.url
        broker_url = self.broker.conf.broker_url
        if redis_url and self.broker.kind == "redis":
            broker_url = redis_url
        env = {
            "RLOCK_TEST_BROKER": broker_url,
            "RLOCK_TEST_FILES": str(self._files),
            "RLOCK_TEST_CONF": json.dumps(settings),
            **self.env,
        }
        options = {"concurrency": CONCURRENCY, "queues": [self.queue], **options}
        return Pod(f"{TASKS}:app", env=env, **options)

    @contextmanager
    def under_load(self, **options):
        """Publish tasks while the block runs."""
        load = Load(self.broker, self.queue, self.journal, **options)
        load.start()
        try:
            yield load
        finally:
            load.end()

    def show_logs(self) -> None:
        show([*self.deployment.gone, *self.deployment.pods])
