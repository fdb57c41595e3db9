"""The events that locks send on Celery's event bus, and that monitors still see the tasks as before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from celery import Celery, states
from celery.events.state import State
from celery.signals import worker_process_shutdown

from celery_rlock.telemetry import events
from celery_rlock.telemetry.events import FIELDS
from tests.cli.telemetry_fleet import EventCapture, environment, started
from tests.support.daemon import ROOT
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import DEFAULT_KIND, Server

OF_CELERY = {"type", "hostname", "pid", "timestamp", "utcoffset", "clock", "local_received"}


@pytest.fixture(scope="module")
def fleet(private_server, tmp_path_factory):
    with started(
        private_server.url, "-E", concurrency=2, directory=tmp_path_factory.mktemp("fleet")
    ) as fleet:
        yield fleet


def test_a_run_sends_acquired_and_released(fleet, bus, name):
    result = fleet.proj.work.delay(name, 0.2)
    run = result.get(timeout=20)
    acquired, released = bus.await_types(result.id, "lock-acquired", "lock-released")
    for event in (acquired, released):
        assert (event["name"], event["key"]) == (fleet.proj.work.name, name)
        assert (event["owner"], event["token"]) == (run["owner"], run["token"])
        assert event["hostname"] == fleet.worker.nodename
    assert acquired["waited"] == 0
    assert 0.2 <= released["held"] < 20
    assert acquired["timestamp"] < released["timestamp"]


def test_a_waiter_sends_busy_and_then_how_long_it_waited(fleet, bus, name):
    with fleet.hold(name) as lock:
        result = fleet.proj.work.delay(name)
        wait_until(lambda: "lock-busy" in bus.types(result.id), timeout=20, what="the busy event")
        holder = lock.owner
    result.get(timeout=20)
    wait_until(lambda: "lock-released" in bus.types(result.id), timeout=20, what="the release")
    busy, *_, acquired, _ = bus.locks(result.id)
    assert (busy["action"], busy["holder"]) == ("retry", holder)
    assert 0 < acquired["waited"] < 20
    assert acquired["timestamp"] - busy["timestamp"] == pytest.approx(acquired["waited"], abs=5)


def test_waiting_in_place_sends_busy_too(fleet, bus, name):
    with fleet.hold(name):
        result = fleet.proj.waiting.delay(name)
        wait_until(lambda: bus.types(result.id), timeout=20, what="the busy event")
    result.get(timeout=20)
    busy, acquired, _ = bus.await_types(result.id, "lock-busy", "lock-acquired", "lock-released")
    assert busy["action"] == "wait"
    assert acquired["waited"] > 0


def test_a_skipped_task_sends_skipped_and_not_busy(fleet, bus, name):
    """Semantics 11: event, log and counter."""
    with fleet.hold(name) as lock:
        result = fleet.proj.skipping.delay(name)
        [skipped] = bus.await_types(result.id, "lock-skipped")
        assert (skipped["action"], skipped["holder"]) == ("skip", lock.owner)
    wait_until(
        lambda: result.state == states.REVOKED, timeout=20, what="the state, which is stored after the event"
    )


def test_a_lost_lock_sends_lost_while_the_run_goes_on(fleet, bus, name):
    """Semantics 8: the event of a lost lock."""
    result = fleet.proj.losing.delay(name)
    assert result.get(timeout=20) is True
    _, lost, _ = bus.await_types(result.id, "lock-acquired", "lock-lost", "lock-released")
    assert (lost["key"], lost["reason"]) == (name, "another client released or took it")


def test_a_replaced_run_sends_replaced(fleet, bus, name):
    older = fleet.proj.replacing.delay(name, 60)
    bus.await_types(older.id, "lock-acquired")
    newer = fleet.proj.replacing.delay(name)
    newer.get(timeout=30)
    bus.await_types(older.id, "lock-acquired", "lock-replaced", "lock-released")
    [replaced] = [event for event in bus.locks(older.id) if event["type"] == events.REPLACED]
    assert (replaced["name"], replaced["key"], replaced["by"]) == (fleet.proj.replacing.name, name, newer.id)
    assert replaced["held"] > 0


def test_a_duplicate_call_sends_duplicate_from_its_publisher(fleet, bus, name):
    fleet.proj.app.conf.task_send_sent_event = True
    try:
        first = fleet.proj.once.delay(name, 1)
        assert fleet.proj.once.delay(name).id == first.id
    finally:
        fleet.proj.app.conf.task_send_sent_event = False
    assert fleet.proj.once.delay(name).id == first.id
    first.get(timeout=20)
    bus.await_types(first.id, "lock-duplicate", "lock-acquired", "lock-released")
    [duplicate] = [event for event in bus.locks(first.id) if event["type"] == events.DUPLICATE]
    assert (duplicate["name"], duplicate["key"]) == (fleet.proj.once.name, name)
    assert duplicate["action"] == "existing"
    assert duplicate["holder"].endswith(first.id)
    assert f"{os.getpid()}@" in duplicate["hostname"]


def test_a_superseded_call_sends_superseded_from_the_publisher_of_the_later_one(fleet, bus, name):
    fleet.proj.app.conf.task_send_sent_event = True
    try:
        first, second = (fleet.proj.newest.apply_async((name,), queue=f"none-{name}") for _ in range(2))
    finally:
        fleet.proj.app.conf.task_send_sent_event = False
    bus.await_types(first.id, "lock-superseded")
    [superseded] = [event for event in bus.locks(first.id) if event["type"] == events.SUPERSEDED]
    assert (superseded["name"], superseded["key"]) == (fleet.proj.newest.name, name)
    assert superseded["by"] == second.id
    assert f"{os.getpid()}@" in superseded["hostname"]


def test_a_publisher_that_ends_at_once_sends_its_duplicates(private_server, bus, name):
    lines = (
        "from tests.cli.telemetry_app import app, once",
        "app.conf.task_send_sent_event = True",
        f"once.apply_async(({name!r},), queue='no worker consumes it')",
        f"print(once.delay({name!r}).id)",
    )
    env = {**os.environ, **environment(private_server.url)}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        check=False,
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    bus.await_types(done.stdout.strip(), "lock-duplicate")


def test_a_task_with_send_events_off_sends_no_lock_events(fleet, bus, name):
    fleet.proj.quiet.delay(name).get(timeout=20)
    after = fleet.proj.work.delay(name)
    bus.await_types(after.id, "lock-acquired", "lock-released")
    assert not [event for event in bus.events if event.get("name") == fleet.proj.quiet.name]


def test_a_retry_by_the_user_has_none_of_our_headers(fleet, name):
    headers = fleet.proj.retrying.delay(name).get(timeout=20)
    assert not [header for header in headers if header.startswith("rlock_")]


def test_each_event_has_the_documented_fields(fleet, bus, name):
    test_a_waiter_sends_busy_and_then_how_long_it_waited(fleet, bus, name)
    test_a_skipped_task_sends_skipped_and_not_busy(fleet, bus, name)
    test_a_lost_lock_sends_lost_while_the_run_goes_on(fleet, bus, name)
    test_a_duplicate_call_sends_duplicate_from_its_publisher(fleet, bus, name)
    test_a_superseded_call_sends_superseded_from_the_publisher_of_the_later_one(fleet, bus, name)
    test_a_replaced_run_sends_replaced(fleet, bus, name)
    seen = {
        event["type"]: set(event) - OF_CELERY for event in bus.events if event["type"].startswith("lock-")
    }
    assert seen == {kind: set(FIELDS[kind]) for kind in FIELDS if kind != events.UNAVAILABLE}


def test_celerys_state_is_the_same_with_and_without_our_events(fleet, bus, name):
    with fleet.hold(name):
        skipped = fleet.proj.skipping.delay(name)
        waiter = fleet.proj.work.delay(name)
        bus.await_types(skipped.id, "lock-skipped")
    waiter.get(timeout=20)
    bus_has = lambda kind, task: any(e["type"] == kind and e.get("uuid") == task.id for e in bus.events)  # noqa: E731
    wait_until(lambda: bus_has("task-succeeded", waiter), timeout=20, what="the end")
    wait_until(lambda: bus_has("task-revoked", skipped), timeout=20, what="the skip")
    wait_until(lambda: bus_has("lock-released", waiter), timeout=20, what="the release")
    heard = list(bus.events)
    with_ours = view(heard)
    assert with_ours == view([event for event in heard if not event["type"].startswith("lock-")])
    assert (with_ours[waiter.id][0], with_ours[skipped.id][0]) == ("SUCCESS", "REVOKED")


def view(heard):
    state = State()
    for event in heard:
        state.event(dict(event))
    return {task_id: (task.state, task.name, task.retries) for task_id, task in state.tasks.items()}


def test_a_lock_server_that_is_down_sends_unavailable(private_server, bus, name, tmp_path):
    down = f"redis://127.0.0.1:{free_port()}/0"
    with started(private_server.url, "-E", directory=tmp_path, lock_url=down, queues=("alone",)) as fleet:
        result = fleet.proj.carefree.apply_async((name,), queue="alone")
        assert result.get(timeout=20) is False
        [unavailable] = bus.await_types(result.id, "lock-unavailable")
    assert set(unavailable) - OF_CELERY == set(FIELDS[events.UNAVAILABLE])
    assert unavailable["action"] == "run"


def test_nothing_is_sent_until_events_are_enabled(private_server, bus, name, tmp_path):
    """`celery control enable_events` and Flower enable them."""
    with started(
        private_server.url, directory=tmp_path, queues=("asked",), without=("gossip", "mingle")
    ) as fleet:
        work, app = fleet.proj.work, fleet.proj.app
        before = work.apply_async((name,), queue="asked")
        before.get(timeout=20)
        app.control.enable_events(destination=[fleet.worker.nodename], reply=True, timeout=10)
        after = work.apply_async((name,), queue="asked")
        bus.await_types(after.id, "lock-acquired", "lock-released")
        assert bus.types(before.id) == []
        app.control.disable_events(destination=[fleet.worker.nodename], reply=True, timeout=10)
        work.apply_async((name,), task_id="unseen", queue="asked").get(timeout=20)
    assert bus.types("unseen") == []


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_every_pool_sends_events(private_server, bus, name, tmp_path, pool):
    with started(private_server.url, "-E", pool=pool, directory=tmp_path, queues=(pool,)) as fleet:
        result = fleet.proj.work.apply_async((name,), queue=pool)
        result.get(timeout=20)
        bus.await_types(result.id, "lock-acquired", "lock-released")


@pytest.fixture
def sending(private_server, bus):
    """A proxy, and a function that sends an event from this process through it."""
    with (
        Proxy(private_server.port) as proxy,
        Celery("sending", broker=proxy.url, set_as_current=False) as app,
    ):
        yield proxy, lambda task_id: events._sender.send(app, "here", events.RELEASED, {"uuid": task_id})
        proxy.thaw()
        events._sender.flush()


def test_a_process_sends_its_last_events_before_it_ends(sending, bus, name):
    proxy, send = sending
    send(f"{name}-first")  # connects
    bus.await_types(f"{name}-first", events.RELEASED)
    proxy.freeze()
    send(name)
    threading.Timer(0.2, proxy.thaw).start()
    worker_process_shutdown.send(sender=None)
    assert not events._sender._waiting
    assert not events._sender._is_sending
    bus.await_types(name, events.RELEASED)


def test_a_process_does_not_wait_for_ever_for_a_silent_broker(sending, name):
    proxy, send = sending
    proxy.freeze()
    send(name)
    start = time.monotonic()
    worker_process_shutdown.send(sender=None)
    assert time.monotonic() - start < 10
    assert events._sender._waiting or events._sender._is_sending


def test_an_event_that_cannot_be_sent_does_not_delay_the_others(sending, bus, name):
    _, send = sending
    send(object())
    send(name)
    bus.await_types(name, events.RELEASED)


def test_no_run_waits_for_its_events_while_the_broker_is_away(private_server, name, tmp_path):
    """The run ends while the broker is away; its events arrive later, with the right times."""
    with (
        Server.start(DEFAULT_KIND) as behind,
        Proxy(behind.port) as broker,
        EventCapture(behind.url) as bus,
        started(
            private_server.url, "-E", broker=broker.url, publish_to=behind.url, directory=tmp_path
        ) as fleet,
    ):
        first = fleet.proj.work.delay(name)
        first.get(timeout=20)
        bus.await_types(first.id, "lock-acquired", "lock-released")
        result = fleet.proj.work.delay(name, 2)
        wait_until(lambda: "lock-acquired" in bus.types(result.id), timeout=20, what="the run")
        broker.refuse()
        assert result.get(timeout=20)["token"]
        client = private_server.client()
        wait_until(lambda: not client.exists(f"rlock:{{{name}}}"), timeout=10, what="the release")
        broker.accept()
        _, released = bus.await_types(result.id, "lock-acquired", "lock-released")
        assert 2 <= released["held"] < 20
