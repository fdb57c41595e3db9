"""The real Flower, and `celery events`, work with a worker that sends our events."""

from __future__ import annotations

import json
import sys
import urllib.request

import pytest
from celery.result import AsyncResult

from tests.cli.telemetry_fleet import PROJ, environment, started
from tests.support.daemon import Daemon
from tests.support.processes import free_port, wait_until


class Flower(Daemon):
    """Flower on a free port, with an API that needs no login."""

    def __init__(self, url):
        super().__init__("flower", {**environment(url), "FLOWER_UNAUTHENTICATED_API": "true"})
        self.port = free_port()

    def command(self):
        options = ["--address=127.0.0.1", f"--port={self.port}", "--logging=info"]
        return [sys.executable, "-m", "celery", "-A", PROJ, "flower", *options]

    def is_ready(self):
        try:
            return self.get("/api/tasks") is not None
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def text(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()


@pytest.fixture(scope="module")
def flower(private_server):
    with Flower(private_server.url).started() as flower:
        yield flower


@pytest.fixture(scope="module")
def fleet(private_server, flower, tmp_path_factory):
    with started(
        private_server.url, "-E", concurrency=2, directory=tmp_path_factory.mktemp("fleet")
    ) as fleet:
        yield fleet


@pytest.mark.slow
def test_flower_shows_the_final_state_of_each_task(fleet, flower, bus, name):
    """Semantics 11: Flower shows a skipped task as REVOKED."""
    with fleet.hold(name):
        skipped, failed = fleet.proj.skipping.delay(name), fleet.proj.failing.delay(name)
        waiter = fleet.proj.work.delay(name)
        bus.await_types(skipped.id, "lock-skipped")
        bus.await_types(failed.id, "lock-busy")
        wait_until(lambda: bus.types(waiter.id), timeout=20, what="the busy event")
    waiter.get(timeout=20)
    plain, lost = fleet.proj.plain.delay(name), fleet.proj.losing.delay(name)
    lost.get(timeout=20)
    sent = {skipped.id: "REVOKED", failed.id: "FAILURE", waiter.id: "SUCCESS"}
    sent |= {plain.id: "SUCCESS", lost.id: "SUCCESS"}
    shown = lambda: {i: t["state"] for i, t in flower.get("/api/tasks").items() if i in sent}  # noqa: E731
    wait_until(
        lambda: shown() == sent, timeout=30, what=f"{sent} in Flower, which shows {shown()}", every=0.2
    )
    stored = {task_id: AsyncResult(task_id, app=fleet.proj.app).state for task_id in sent}
    assert stored == sent
    bus.await_types(lost.id, "lock-acquired", "lock-lost", "lock-released")
    assert shown() == sent
    assert "flower_events_total" in flower.text("/metrics")
    assert not [line for line in flower.log.splitlines() if "ERROR" in line or "Traceback" in line]


def test_flower_shows_why_a_task_waits(fleet, flower, name):
    def shown():
        return (flower.get("/api/tasks").get(waiter.id) or {}).get("exception")

    with fleet.hold(name) as lock:
        waiter = fleet.proj.work.delay(name)
        wait_until(shown, timeout=30, what="the waiting task in Flower", every=0.2)
        assert shown().startswith(f"waits: lock {name!r} is held by {lock.owner}")
    waiter.get(timeout=20)


class Dump(Daemon):
    """`celery events --dump`: it prints a line for every event."""

    def __init__(self, url):
        super().__init__("dump", {**environment(url), "PYTHONUNBUFFERED": "1"})

    def command(self):
        return [sys.executable, "-m", "celery", "-A", PROJ, "events", "--dump"]

    def is_ready(self):
        return "starting capture" in self.log


def test_celery_events_dumps_our_events_among_the_others(fleet, private_server, name):
    with Dump(private_server.url).started() as dump:
        wait_until(lambda: _probe(fleet) and "probe sent" in dump.log, timeout=20, what="an event", every=0.1)
        result = fleet.proj.work.delay(name)
        wait_until(lambda: "lock released: " in dump.log, timeout=20, what="our event")
        wait_until(lambda: f"task succeeded: {fleet.proj.work.name}({result.id})" in dump.log, what="the end")
        line = next(line for line in dump.log.splitlines() if "lock released: " in line)
        assert f"key={name}" in line
        assert f"uuid={result.id}" in line
        assert "Traceback" not in dump.log


def _probe(fleet):
    with fleet.proj.app.events.default_dispatcher() as dispatcher:
        dispatcher.send("probe-sent")
    return True
