"""What happens to a lock is told on Celery's event bus, and monitors keep their view of the tasks."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from celery import Celery, states
from celery.events.state import State
from celery.signals import worker_process_shutdown

from celery_rlock import events
from celery_rlock.event_sender import sender
from celery_rlock.events import FIELDS
from tests.conftest import DEFAULT_KIND
from tests.ops.observed import Capture, started
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import Server

OF_CELERY = {"type", "hostname", "pid", "timestamp", "utcoffset", "clock", "local_received"}


@pytest.fixture(scope="module")
def server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(server, tmp_path_factory):
    with started(server.url, "-E", concurrency=2, directory=tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def bus(server):
    with Capture(server.url) as capture:
        yield capture


@pytest.fixture
def name():
    return f"key-{uuid.uuid4().hex[:8]}"


def test_an_ordinary_run_is_acquired_and_released(fleet, bus, name):
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


def test_a_waiter_is_busy_and_then_tells_how_long_it_waited(fleet, bus, name):
    with fleet.hold(name) as lock:
        result = fleet.proj.work.delay(name)
        wait_until(lambda: "lock-busy" in bus.types(result.id), timeout=20, what="the busy answer")
        holder = lock.owner
    result.get(timeout=20)
    wait_until(lambda: "lock-released" in bus.types(result.id), timeout=20, what="the release")
    busy, *_, acquired, _ = bus.locks(result.id)
    assert (busy["action"], busy["holder"]) == ("retry", holder)
    assert 0 < acquired["waited"] < 20
    assert acquired["timestamp"] - busy["timestamp"] == pytest.approx(acquired["waited"], abs=5)


def test_waiting_in_place_is_told_too(fleet, bus, name):
    with fleet.hold(name):
        result = fleet.proj.waiting.delay(name)
        wait_until(lambda: bus.types(result.id), timeout=20, what="the busy answer")
    result.get(timeout=20)
    busy, acquired, _ = bus.await_types(result.id, "lock-busy", "lock-acquired", "lock-released")
    assert busy["action"] == "wait"
    assert acquired["waited"] > 0


def test_a_skipped_task_is_skipped_and_not_busy(fleet, bus, name):
    """Semantics 11: event, log and counter."""
    with fleet.hold(name) as lock:
        result = fleet.proj.skipping.delay(name)
        [skipped] = bus.await_types(result.id, "lock-skipped")
        assert (skipped["action"], skipped["holder"]) == ("skip", lock.owner)
    wait_until(lambda: result.state == states.REVOKED, timeout=20, what="the state, which is stored after it")


def test_a_lost_lock_is_told_while_the_run_goes_on(fleet, bus, name):
    """Semantics 8: and on the bus."""
    result = fleet.proj.losing.delay(name)
    assert result.get(timeout=20) is True
    _, lost, _ = bus.await_types(result.id, "lock-acquired", "lock-lost", "lock-released")
    assert (lost["key"], lost["reason"]) == (name, "somebody else released or took it")


def test_a_task_that_sends_no_events_sends_none_of_its_lock(fleet, bus, name):
    fleet.proj.quiet.delay(name).get(timeout=20)
    after = fleet.proj.work.delay(name)
    bus.await_types(after.id, "lock-acquired", "lock-released")
    assert not [event for event in bus.events if event.get("name") == fleet.proj.quiet.name]


def test_the_users_own_retry_carries_none_of_our_headers(fleet, name):
    headers = fleet.proj.retrying.delay(name).get(timeout=20)
    assert not [header for header in headers if header.startswith("rlock_")]


def test_the_fields_of_each_event_are_those_that_are_documented(fleet, bus, name):
    test_a_waiter_is_busy_and_then_tells_how_long_it_waited(fleet, bus, name)
    test_a_skipped_task_is_skipped_and_not_busy(fleet, bus, name)
    test_a_lost_lock_is_told_while_the_run_goes_on(fleet, bus, name)
    seen = {
        event["type"]: set(event) - OF_CELERY for event in bus.events if event["type"].startswith("lock-")
    }
    assert seen == {kind: set(FIELDS[kind]) for kind in FIELDS if kind != events.UNAVAILABLE}


def test_celerys_state_has_the_same_tasks_with_and_without_our_events(fleet, bus, name):
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


def test_a_server_that_cannot_be_reached_is_told(server, bus, name, tmp_path):
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with started(server.url, "-E", directory=tmp_path, lock_url=nobody, queues=("alone",)) as fleet:
        result = fleet.proj.carefree.apply_async((name,), queue="alone")
        assert result.get(timeout=20) is False
        [unavailable] = bus.await_types(result.id, "lock-unavailable")
    assert set(unavailable) - OF_CELERY == set(FIELDS[events.UNAVAILABLE])
    assert unavailable["action"] == "run"


def test_nothing_is_sent_until_somebody_enables_events(server, bus, name, tmp_path):
    """As `celery control enable_events` and Flower do."""
    with started(server.url, directory=tmp_path, queues=("asked",), without=("gossip", "mingle")) as fleet:
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
def test_events_come_from_every_pool(server, bus, name, tmp_path, pool):
    with started(server.url, "-E", pool=pool, directory=tmp_path, queues=(pool,)) as fleet:
        result = fleet.proj.work.apply_async((name,), queue=pool)
        result.get(timeout=20)
        bus.await_types(result.id, "lock-acquired", "lock-released")


@pytest.fixture
def told(server, bus):
    """Sends an event from this process, through a proxy: (proxy, send)."""
    with Proxy(server.port) as proxy, Celery("told", broker=proxy.url, set_as_current=False) as app:
        yield proxy, lambda task_id: sender.send(app, "here", events.RELEASED, {"uuid": task_id})
        proxy.thaw()
        sender.flush()


def test_the_last_events_of_a_process_are_sent_before_it_ends(told, bus, name):
    proxy, send = told
    send(f"{name}-first")  # connects
    bus.await_types(f"{name}-first", events.RELEASED)
    proxy.freeze()
    send(name)
    threading.Timer(0.2, proxy.thaw).start()
    worker_process_shutdown.send(sender=None)
    assert not sender._waiting
    assert not sender._sending
    bus.await_types(name, events.RELEASED)


def test_a_process_does_not_wait_for_a_broker_that_never_answers(told, name):
    proxy, send = told
    proxy.freeze()
    send(name)
    start = time.monotonic()
    worker_process_shutdown.send(sender=None)
    assert time.monotonic() - start < 10
    assert sender._waiting or sender._sending


def test_an_event_that_cannot_be_sent_does_not_hold_up_the_others(told, bus, name):
    _, send = told
    send(object())
    send(name)
    bus.await_types(name, events.RELEASED)


def test_a_broker_that_is_away_makes_no_run_wait_for_its_events(server, name, tmp_path):
    """The run ends while the broker is frozen; its events come later, with the time of what they tell."""
    with (
        Server.start(DEFAULT_KIND) as behind,
        Proxy(behind.port) as broker,
        Capture(behind.url) as bus,
        started(server.url, "-E", broker=broker.url, publish_to=behind.url, directory=tmp_path) as fleet,
    ):
        first = fleet.proj.work.delay(name)
        first.get(timeout=20)
        bus.await_types(first.id, "lock-acquired", "lock-released")
        result = fleet.proj.work.delay(name, 2)
        wait_until(lambda: "lock-acquired" in bus.types(result.id), timeout=20, what="the run")
        broker.refuse()
        assert result.get(timeout=20)["token"]
        client = server.client()
        wait_until(lambda: not client.exists(f"rlock:{{{name}}}"), timeout=10, what="the release")
        broker.accept()
        _, released = bus.await_types(result.id, "lock-acquired", "lock-released")
        assert 2 <= released["held"] < 20
