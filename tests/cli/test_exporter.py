"""`celery rlock exporter`: what Prometheus sees of a fleet."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import uuid

import pytest
from prometheus_client import CollectorRegistry

from celery_rlock import events
from celery_rlock.core import inventory
from celery_rlock.core.client import connect
from celery_rlock.core.name import Owner
from celery_rlock.core.scripts import Scripts
from celery_rlock.ops.lock_metrics import EventMetrics
from celery_rlock.ops.survey import survey
from celery_rlock.ops.task_labels import NO_TASK, OTHER, TaskLabels
from tests.conftest import DEFAULT_KIND
from tests.ops.exporting import Exporter
from tests.ops.observed import PROJ, environment, started
from tests.support.daemon import ROOT
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import Server


@pytest.fixture(scope="module")
def server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def broker(server):
    """The same server; what goes through here can be cut off."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def exporter(server, broker):
    with Exporter(server.url, broker=broker.url).started() as exporter:
        exporter.await_value(1, "exporter_events_connected")
        yield exporter


@pytest.fixture(scope="module")
def fleet(server, exporter, tmp_path_factory):
    with started(server.url, "-E", concurrency=2, directory=tmp_path_factory.mktemp("fleet")) as fleet:
        while not exporter.value("acquisitions_total", fleet.proj.carefree.name):  # until the exporter hears
            fleet.proj.carefree.delay("warm-up").get(timeout=20)
        yield fleet


@pytest.fixture
def name():
    return f"key-{uuid.uuid4().hex[:8]}"


def test_runs_and_their_times_are_counted(exporter, fleet, name):
    task = fleet.proj.work.name
    before = exporter.value("acquisitions_total", task)
    for i in range(3):
        fleet.proj.work.delay(f"{name}-{i}", 0.1).get(timeout=20)
    exporter.await_value(before + 3, "acquisitions_total", task)
    exporter.await_value(before + 3, "hold_seconds_count", task)
    assert exporter.value("wait_seconds_count", task) == before + 3
    assert exporter.value("hold_seconds_sum", task) >= 0.3


def test_what_waits_is_counted_and_so_is_what_it_waits_for(exporter, fleet, name):
    task = fleet.proj.waiting.name
    holder, waiter = fleet.proj.work.delay(name, 2.5), fleet.proj.waiting.delay(name)
    exporter.await_value(1, "locks", fleet.proj.work.name, "held")
    exporter.await_value(1, "waiters", fleet.proj.work.name)
    assert exporter.value("oldest_hold_seconds", fleet.proj.work.name) >= 0
    holder.get(timeout=20)
    waiter.get(timeout=20)
    exporter.await_value(1, "wait_seconds_count", task)
    assert exporter.value("wait_seconds_sum", task) > 0
    assert exporter.value("busy_total", task, "wait") == 1
    exporter.await_value(None, "locks", fleet.proj.work.name, "held")
    exporter.await_value(None, "waiters", fleet.proj.work.name)


def test_skips_failures_and_losses_are_counted(exporter, fleet, name):
    """Semantics 11: event, log and counter."""
    with fleet.hold(name):
        exporter.await_value(1, "locks", NO_TASK, "held")
        fleet.proj.skipping.delay(name).get(timeout=20, propagate=False)
        fleet.proj.failing.delay(name).get(timeout=20, propagate=False)
    fleet.proj.losing.delay(name).get(timeout=20)
    exporter.await_value(1, "skipped_total", fleet.proj.skipping.name)
    exporter.await_value(1, "busy_total", fleet.proj.failing.name, "fail")
    exporter.await_value(1, "lost_total", fleet.proj.losing.name)
    assert exporter.value("busy_total", fleet.proj.skipping.name, "skip") is None


def test_a_locked_task_that_never_ran_begins_at_zero(exporter, fleet):
    """So that the first loss is an increase."""
    never = fleet.proj.retrying.name
    for counter in ("acquisitions_total", "skipped_total", "lost_total"):
        assert exporter.value(counter, never) == 0
    assert exporter.value("unavailable_total", never, "fail") == 0
    assert exporter.value("acquisitions_total", fleet.proj.plain.name) is None


def test_no_key_is_a_label(exporter, fleet, name):
    with fleet.hold(name):
        fleet.proj.skipping.delay(name).get(timeout=20, propagate=False)
    assert name not in exporter.get("/metrics")


def test_healthz_asks_no_server(exporter, server):
    server.pause()
    try:
        assert exporter.get("/healthz") == "ok\n"
    finally:
        server.resume()


def test_another_path_is_not_found(exporter):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        exporter.get("/")


def test_a_broker_that_comes_back_is_heard_again(exporter, fleet, broker, name):
    """Meanwhile the metrics say that nothing is heard."""
    broker.refuse()
    exporter.await_value(0, "exporter_events_connected")
    broker.accept()
    exporter.await_value(1, "exporter_events_connected")
    before = exporter.value("acquisitions_total", fleet.proj.work.name)
    wait_until(
        lambda: (
            fleet.proj.work.delay(name).get(timeout=20)
            and exporter.value("acquisitions_total", fleet.proj.work.name) > before
        ),
        timeout=30,
        what="an event",
        every=0.2,
    )
    assert "Traceback" not in exporter.log


def test_a_server_that_does_not_answer_leaves_a_gap_and_not_an_old_number(name):
    with Server.start(DEFAULT_KIND) as server, Exporter(server.url).started() as exporter:
        scripts = Scripts(connect(server.url))
        scripts.acquire(scripts.name(name), Owner("w", "d", "t"), 1, 60, "")
        exporter.await_value(1, "locks", NO_TASK, "held")
        assert exporter.value("exporter_survey_complete") == 1
        server.kill()
        exporter.await_value(0, "exporter_survey_complete")
        assert exporter.value("locks", NO_TASK, "held") is None
        server.restart()
        exporter.await_value(1, "exporter_survey_complete")


def test_without_prometheus_the_command_says_what_to_install(server):
    code = "import sys; sys.modules['prometheus_client'] = None; from celery.__main__ import main; main()"
    command = [sys.executable, "-c", code, "-A", PROJ, "rlock", "exporter"]
    env = {**environment(server.url), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=ROOT, check=False
    )
    assert ended.returncode == 1
    assert "pip install celery-rlock[metrics]" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_is_an_error_and_no_traceback(exporter, server):
    command = [sys.executable, "-m", "celery", "-A", PROJ, "rlock", "exporter", "--port", str(exporter.port)]
    env = {**environment(server.url), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=ROOT, check=False
    )
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{exporter.port}" in ended.stderr


def test_labels_are_tasks_that_the_app_knows_and_only_so_many():
    labels = TaskLabels({"a", "b", "c"}, most=2)
    assert [labels.of(task) for task in ("a", "b", "c", "a", "unknown", "", None, 5)] == [
        *("a", "b", OTHER, "a", OTHER, NO_TASK, OTHER, OTHER)
    ]


def test_an_event_that_somebody_made_up_creates_no_label():
    registry = CollectorRegistry()
    handlers = EventMetrics(registry, TaskLabels({"a"}, most=9)).handlers()
    for i in range(50):
        handlers[events.BUSY]({"name": f"made-up-{i}", "action": f"made-up-{i}"})
        handlers[events.SKIPPED]({})
    assert registry.get_sample_value("celery_rlock_busy_total", {"task": OTHER, "action": OTHER}) == 50
    assert registry.get_sample_value("celery_rlock_skipped_total", {"task": OTHER}) == 50


@pytest.fixture
def scripts(server):
    """An empty server with a prefix that would be a pattern."""
    client = server.client()
    client.flushall()
    return Scripts(client, "a[b]*:")


def test_a_survey_tells_held_queued_and_resting_apart_and_other_keys_do_not_count(scripts):
    for key, delivery in (("k1", "d1"), ("k2", "d2"), ("k3", "queued"), ("k4", "rest")):
        scripts.acquire(scripts.name(key), Owner("w", delivery, "t"), 1, 60, "tasks.one")
    scripts.client.mset({f"a[b]*:{{other-{i}}}": i for i in range(3)})
    scripts.client.mset({f"ab:{{other-{i}}}": i for i in range(1000)})
    found = survey(scripts, str, longest=30)
    assert found.is_complete
    assert found.locks == {("tasks.one", "held"): 2, ("tasks.one", "queued"): 1, ("tasks.one", "resting"): 1}


def test_a_survey_ends_when_its_time_is_over(scripts, monkeypatch):
    monkeypatch.setattr(inventory, "BATCH", 5)
    for i in range(20):
        scripts.acquire(scripts.name(f"k{i}"), Owner("w", "d", "t"), 1, 60, "")
    found = survey(scripts, str, longest=-1)
    assert not found.is_complete
    assert 0 < sum(found.locks.values()) < 20


def test_a_survey_asks_in_pages_and_only_what_takes_a_moment(server, scripts, broker):
    """What makes a server with a million keys wait is never asked."""
    for i in range(3):
        scripts.acquire(scripts.name(f"k{i}"), Owner("w", "d", "t"), 1, 60, "")
    scripts.client.zadd("a[b]*:{k0}:waiters", {"l:d:t": 1})
    asked = len(broker.seen)
    found = survey(Scripts(connect(broker.url), scripts.prefix), str, longest=30)
    assert (sum(found.locks.values()), sum(found.waiters.values())) == (3, 1)
    commands = [
        command for command in broker.seen[asked:] if command[0].upper() in {b"SCAN", b"KEYS", b"HGETALL"}
    ]
    pages = [command for command in commands if command[0].upper() == b"SCAN"]
    assert pages
    assert all(int(page[page.index(b"COUNT") + 1]) <= 1000 for page in pages)
    assert b"KEYS" not in {command[0].upper() for command in commands}
