"""`celery rlock exporter`: the metrics that Prometheus reads."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
from contextlib import suppress

import psutil
import pytest
from prometheus_client import CollectorRegistry

from celery_rlock.cli.exporter import MOST_CONNECTIONS, _tolerant
from celery_rlock.cli.metrics import NO_TASK, OTHER, EventMetrics, TaskLabels
from celery_rlock.cli.survey import survey
from celery_rlock.server import inventory
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from celery_rlock.telemetry import events
from tests.cli.telemetry_fleet import PROJ, ExporterProcess, environment, started
from tests.support.daemon import ROOT
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import DEFAULT_KIND, Server


@pytest.fixture(scope="module")
def broker(private_server):
    """The same server, through a proxy that can be cut off."""
    with Proxy(private_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def exporter(private_server, broker):
    with ExporterProcess(private_server.url, broker=broker.url).started() as exporter:
        exporter.await_value(1, "exporter_events_connected")
        yield exporter


@pytest.fixture(scope="module")
def fleet(private_server, exporter, tmp_path_factory):
    with started(
        private_server.url, "-E", concurrency=2, directory=tmp_path_factory.mktemp("fleet")
    ) as fleet:
        while not exporter.value(
            "acquisitions_total", fleet.proj.carefree.name
        ):  # until the exporter receives events
            fleet.proj.carefree.delay("warm-up").get(timeout=20)
        yield fleet


def test_it_counts_runs_and_their_times(exporter, fleet, name):
    task = fleet.proj.work.name
    before = exporter.value("acquisitions_total", task)
    for i in range(3):
        fleet.proj.work.delay(f"{name}-{i}", 0.1).get(timeout=20)
    exporter.await_value(before + 3, "acquisitions_total", task)
    exporter.await_value(before + 3, "hold_seconds_count", task)
    assert exporter.value("wait_seconds_count", task) == before + 3
    assert exporter.value("hold_seconds_sum", task) >= 0.3


def test_it_counts_waiters_and_the_locks_they_wait_for(exporter, fleet, name):
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


def test_it_counts_skips_failures_and_losses(exporter, fleet, name):
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


def test_it_counts_calls_that_are_not_published(exporter, fleet, name):
    once = fleet.proj.once
    fleet.proj.app.conf.task_send_sent_event = True
    try:
        first = once.delay(name, 1)
        for _ in range(3):
            assert once.delay(name).id == first.id
    finally:
        fleet.proj.app.conf.task_send_sent_event = False
    exporter.await_value(3, "duplicates_total", once.name)
    first.get(timeout=20)


def test_it_counts_calls_that_are_superseded(exporter, fleet, name):
    newest = fleet.proj.newest
    fleet.proj.app.conf.task_send_sent_event = True
    try:
        for _ in range(3):
            newest.apply_async((name,), queue=f"none-{name}")
    finally:
        fleet.proj.app.conf.task_send_sent_event = False
    exporter.await_value(2, "superseded_total", newest.name)


def test_it_counts_calls_that_are_replaced(exporter, fleet, name):
    replacing = fleet.proj.replacing
    replacing.delay(name, 60)
    exporter.await_value(1, "acquisitions_total", replacing.name)
    replacing.delay(name).get(timeout=30)
    exporter.await_value(1, "replaced_total", replacing.name)


def test_counters_of_a_task_that_never_ran_are_zero(exporter, fleet):
    """Prometheus then sees the first loss as an increase."""
    never = fleet.proj.retrying.name
    for counter in (
        "acquisitions_total",
        "skipped_total",
        "duplicates_total",
        "superseded_total",
        "replaced_total",
        "lost_total",
    ):
        assert exporter.value(counter, never) == 0
    assert exporter.value("unavailable_total", never, "fail") == 0
    assert exporter.value("acquisitions_total", fleet.proj.plain.name) is None


def test_no_key_is_a_label(exporter, fleet, name):
    with fleet.hold(name):
        fleet.proj.skipping.delay(name).get(timeout=20, propagate=False)
    assert name not in exporter.get("/metrics")


def test_healthz_asks_no_server(exporter, private_server):
    private_server.pause()
    try:
        assert exporter.get("/healthz") == "ok\n"
    finally:
        private_server.resume()


def test_another_path_is_404(exporter):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        exporter.get("/other")


def test_clients_that_never_finish_do_not_keep_prometheus_out(exporter):
    """Each sends a byte now and then, so that no timeout of a socket ends it."""
    slow = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(2 * MOST_CONNECTIONS)]

    def all_ended():
        still = [client for client in slow if not _has_ended(client)]
        for client in still:
            with suppress(OSError):
                client.send(b"G")
        return not still

    try:
        threads = psutil.Process(exporter.pid).num_threads()
        wait_until(all_ended, timeout=60, what="the exporter to end slow connections", every=0.2)
        assert exporter.get("/healthz") == "ok\n"
        assert threads < MOST_CONNECTIONS + 10
    finally:
        for client in slow:
            client.close()


def _has_ended(client):
    client.setblocking(False)
    try:
        return not client.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_it_receives_events_again_after_the_broker_was_away(exporter, fleet, broker, name):
    """Meanwhile a metric shows that there is no connection."""
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


def test_while_the_lock_server_is_down_there_is_a_gap_and_not_an_old_number(name):
    with Server.start(DEFAULT_KIND) as server, ExporterProcess(server.url).started() as exporter:
        lock_server = RedisLockServer(connect(server.url))
        lock_server.acquire(lock_server.redis_keys(name), Owner("w", "d", "t"), 1, 60, "")
        exporter.await_value(1, "locks", NO_TASK, "held")
        assert exporter.value("exporter_survey_complete") == 1
        server.kill()
        exporter.await_value(0, "exporter_survey_complete")
        assert exporter.value("locks", NO_TASK, "held") is None
        server.restart()
        exporter.await_value(1, "exporter_survey_complete")


def test_without_prometheus_client_it_says_what_to_install(private_server):
    code = "import sys; sys.modules['prometheus_client'] = None; from celery.__main__ import main; main()"
    command = [sys.executable, "-c", code, "-A", PROJ, "rlock", "exporter"]
    env = {**environment(private_server.url), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=ROOT, check=False
    )
    assert ended.returncode == 1
    assert "pip install celery-rlock[metrics]" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_an_error_without_a_traceback(exporter, private_server):
    command = [sys.executable, "-m", "celery", "-A", PROJ, "rlock", "exporter", "--port", str(exporter.port)]
    env = {**environment(private_server.url), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=ROOT, check=False
    )
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{exporter.port}" in ended.stderr


def test_labels_are_known_tasks_up_to_a_limit():
    labels = TaskLabels({"a", "b", "c"}, most=2)
    assert [labels.of(task) for task in ("a", "b", "c", "a", "unknown", "", None, 5)] == [
        *("a", "b", OTHER, "a", OTHER, NO_TASK, OTHER, OTHER)
    ]


def test_a_made_up_event_creates_no_label():
    registry = CollectorRegistry()
    handlers = EventMetrics(registry, TaskLabels({"a"}, most=9)).handlers()
    for i in range(50):
        handlers[events.BUSY]({"name": f"made-up-{i}", "action": f"made-up-{i}"})
        handlers[events.SKIPPED]({})
    assert registry.get_sample_value("celery_rlock_busy_total", {"task": OTHER, "action": OTHER}) == 50
    assert registry.get_sample_value("celery_rlock_skipped_total", {"task": OTHER}) == 50


@pytest.mark.parametrize(
    "waited", ["x", None, float("nan"), float("inf"), "inf", 10**400], ids=lambda waited: str(waited)[:9]
)
def test_a_malformed_event_is_not_counted_and_stops_nothing(waited):
    registry = CollectorRegistry()
    handlers = EventMetrics(registry, TaskLabels({"a"}, most=9)).handlers()
    for seconds in (waited, 2.0):
        _tolerant(handlers[events.ACQUIRED])({"name": "a", "waited": seconds})
    assert registry.get_sample_value("celery_rlock_wait_seconds_sum", {"task": "a"}) == 2.0


@pytest.fixture
def lock_server(private_server):
    """An empty server, with a prefix full of wildcards."""
    client = private_server.client()
    client.flushall()
    return RedisLockServer(client, "a[b]*:")


def test_a_survey_counts_locks_by_state_and_ignores_other_keys(lock_server):
    for key, delivery in (("k1", "d1"), ("k2", "d2"), ("k3", "queued"), ("k4", "rest")):
        lock_server.acquire(lock_server.redis_keys(key), Owner("w", delivery, "t"), 1, 60, "tasks.one")
    lock_server.client.mset({f"a[b]*:{{other-{i}}}": i for i in range(3)})
    lock_server.client.mset({f"ab:{{other-{i}}}": i for i in range(1000)})
    found = survey(lock_server, str, longest=30)
    assert found.is_complete
    assert found.locks == {("tasks.one", "held"): 2, ("tasks.one", "queued"): 1, ("tasks.one", "resting"): 1}


def test_a_survey_ends_after_its_time_limit(lock_server, monkeypatch):
    monkeypatch.setattr(inventory, "BATCH", 5)
    for i in range(20):
        lock_server.acquire(lock_server.redis_keys(f"k{i}"), Owner("w", "d", "t"), 1, 60, "")
    found = survey(lock_server, str, longest=-1)
    assert not found.is_complete
    assert 0 < sum(found.locks.values()) < 20


def test_a_survey_scans_in_small_pages(private_server, lock_server, broker):
    """It never uses KEYS, which would block a server with a million keys."""
    for i in range(3):
        lock_server.acquire(lock_server.redis_keys(f"k{i}"), Owner("w", "d", "t"), 1, 60, "")
    lock_server.client.zadd("a[b]*:{k0}:waiters", {"l:d:t": 1})
    asked = len(broker.seen)
    found = survey(RedisLockServer(connect(broker.url), lock_server.prefix), str, longest=30)
    assert (sum(found.locks.values()), sum(found.waiters.values())) == (3, 1)
    commands = [
        command for command in broker.seen[asked:] if command[0].upper() in {b"SCAN", b"KEYS", b"HGETALL"}
    ]
    pages = [command for command in commands if command[0].upper() == b"SCAN"]
    assert pages
    assert all(int(page[page.index(b"COUNT") + 1]) <= 1000 for page in pages)
    assert b"KEYS" not in {command[0].upper() for command in commands}
