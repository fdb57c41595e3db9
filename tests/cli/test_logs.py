"""One line for each change of a lock, with its fields; nothing about what nobody contends."""

from __future__ import annotations

import logging
import uuid

import pytest

from tests.conftest import DEFAULT_KIND
from tests.ops.observed import started
from tests.support.processes import free_port, wait_until
from tests.support.servers import Server


@pytest.fixture(scope="module")
def server():
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(server, tmp_path_factory):
    """At INFO, as most people run it."""
    with started(server.url, concurrency=2, directory=tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def name():
    return f"key-{uuid.uuid4().hex[:8]}"


def said(lines):
    """Level and beginning of each line: after the task's name and id, until its key."""
    return [
        (line["levelname"], line["text"].partition("] ")[2].partition(f" {line['key']!r}")[0])
        for line in lines
    ]


def await_lines(fleet, name, *expected):
    wait_until(lambda: len(fleet.lines(name)) >= len(expected), timeout=20, what=f"{len(expected)} lines")
    lines = fleet.lines(name)
    assert said(lines) == list(expected)
    return lines


def test_a_waiter_says_that_it_waits_and_for_how_long_it_did(fleet, name):
    with fleet.hold(name) as lock:
        result = fleet.proj.work.delay(name)
        wait_until(lambda: fleet.lines(name), timeout=20, what="the busy line")
        holder = lock.owner
    run = result.get(timeout=20)
    waits, acquired = await_lines(fleet, name, ("INFO", "retry: lock"), ("INFO", "acquired lock"))
    assert f"is held by {holder}" in waits["text"]
    assert "after waiting for" in acquired["text"]
    assert (acquired["owner"], acquired["task_id"], acquired["key"]) == (run["owner"], result.id, name)
    assert waits["owner"].endswith(f":{result.id}")
    assert waits["owner"] != acquired["owner"]  # another delivery


def test_waiting_in_place_says_so(fleet, name):
    with fleet.hold(name):
        result = fleet.proj.waiting.delay(name)
        wait_until(lambda: fleet.lines(name), timeout=20, what="the busy line")
    result.get(timeout=20)
    await_lines(fleet, name, ("INFO", "wait: lock"), ("INFO", "acquired lock"))


def test_a_skip_is_one_line(fleet, name):
    """Semantics 11: event, log and counter."""
    with fleet.hold(name):
        result = fleet.proj.skipping.delay(name)
        result.get(timeout=20, propagate=False)
        [line] = await_lines(fleet, name, ("INFO", "skip: lock"))
    assert (line["key"], line["task_id"]) == (name, result.id)


def test_a_loss_is_an_error_and_its_late_end_a_warning(fleet, name):
    """Semantics 8: signal, log and flag."""
    result = fleet.proj.losing.delay(name)
    assert result.get(timeout=20) is True
    wait_until(lambda: len(fleet.lines(name)) >= 2, timeout=20, what="both lines")
    lines = sorted(fleet.lines(name), key=lambda line: line["levelname"])
    assert [line["levelname"] for line in lines] == ["ERROR", "WARNING"]
    lost, left = lines
    assert f"lock {name!r} of {lost['owner']} is lost: somebody else released or took it" in lost["text"]
    assert f"left lock {name!r}, which it had lost" in left["text"]
    assert {line["task_id"] for line in lines} == {result.id}


def test_the_parent_says_whose_lock_it_released(fleet, name):
    """Semantics 6: when the child is dead."""
    result = fleet.proj.dying.delay(name)
    wait_until(lambda: fleet.lines(name), timeout=20, what="the line")
    [line] = fleet.lines(name)
    assert line["text"] == f"released lock {name!r} of {line['owner']}, which died"
    assert (line["levelname"], line["task_id"], line["key"]) == ("WARNING", result.id, name)


def test_a_server_that_cannot_be_reached_is_a_warning(server, name, tmp_path):
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with started(server.url, directory=tmp_path, lock_url=nobody, queues=("alone",)) as fleet:
        result = fleet.proj.carefree.apply_async((name,), queue="alone")
        result.get(timeout=20)
        [line] = await_lines(fleet, name, ("WARNING", "run: lock"))
    assert (line["key"], line["task_id"]) == (name, result.id)


def test_a_duplicate_that_is_not_published_is_a_line_with_who_has_the_key(fleet, name, caplog):
    caplog.set_level(logging.INFO, "celery_rlock")
    queue = f"nobody-{name}"
    first = fleet.proj.once.apply_async((name,), queue=queue)
    assert fleet.proj.once.apply_async((name,), queue=queue).id == first.id
    [record] = [record for record in caplog.records if record.name == "celery_rlock"]
    assert "is not published" in record.getMessage()
    assert (record.key, record.task_id) == (name, first.id)


def test_at_debug_a_run_says_when_it_has_its_lock_and_when_it_leaves_it(fleet, name, caplog):
    caplog.set_level(logging.DEBUG, "celery_rlock")
    fleet.proj.work.apply((name,))
    texts = [record.getMessage() for record in caplog.records if record.name == "celery_rlock"]
    assert [text.partition("] ")[2].partition(" after")[0] for text in texts] == [
        f"acquired lock {name!r}",
        f"released lock {name!r}",
    ]


def test_an_uncontended_run_says_nothing(fleet, name):
    """Also in a process that has had something to say before."""
    results = [fleet.proj.work.delay(f"{name}-{i}") for i in range(20)]
    for result in results:
        result.get(timeout=30)
    with fleet.hold(name):  # what comes after them has been written, so they have
        fleet.proj.skipping.delay(name).get(timeout=20, propagate=False)
    wait_until(lambda: fleet.lines(name), timeout=20, what="a line")
    assert said(fleet.lines(name)) == [("INFO", "skip: lock")]
