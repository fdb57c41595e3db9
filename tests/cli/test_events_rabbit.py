"""Events and the exporter with RabbitMQ, whose exchange of events is another one than in Redis."""

from __future__ import annotations

import pytest

from tests.conftest import DEFAULT_KIND
from tests.ops.exporting import Exporter
from tests.ops.observed import started
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.rabbit import Rabbit
from tests.support.servers import Server


@pytest.mark.skipif(not Rabbit.available(), reason="no RabbitMQ on this machine")
def test_events_are_heard_over_rabbitmq_and_again_when_it_was_away(tmp_path):
    with (
        Server.start(DEFAULT_KIND) as server,
        Rabbit.start() as rabbit,
        Proxy(rabbit.port, "raw") as broker,
        Exporter(server.url, broker=broker.url).started() as exporter,
        started(server.url, "-E", broker=broker.url, publish_to=rabbit.url, directory=tmp_path) as fleet,
    ):
        work = fleet.proj.work
        counted = lambda: exporter.value("acquisitions_total", work.name)  # noqa: E731
        exporter.await_value(1, "exporter_events_connected")
        work.delay("k").get(timeout=30)
        exporter.await_value(1, "acquisitions_total", work.name)
        exporter.await_value(1, "hold_seconds_count", work.name)
        broker.refuse()
        exporter.await_value(0, "exporter_events_connected")
        broker.accept()
        exporter.await_value(1, "exporter_events_connected")
        wait_until(
            lambda: work.delay("k").get(timeout=30) and counted() > 1,
            timeout=40,
            what="more events",
            every=0.2,
        )
        assert "Traceback" not in exporter.log
