"""Events and the exporter with RabbitMQ, where events go through a real topic exchange."""

from __future__ import annotations

import pytest

from tests.cli.telemetry_fleet import ExporterProcess, started
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.rabbit import Rabbit
from tests.support.servers import DEFAULT_KIND, Server


@pytest.mark.slow
@pytest.mark.skipif(not Rabbit.available(), reason="no RabbitMQ on this machine")
def test_the_exporter_receives_events_again_after_rabbitmq_was_away(tmp_path):
    with (
        Server.start(DEFAULT_KIND) as server,
        Rabbit.start() as rabbit,
        Proxy(rabbit.port, "raw") as broker,
        ExporterProcess(server.url, broker=broker.url).started() as exporter,
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
