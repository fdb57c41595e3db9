"""The log lines about locks, with their fields; a run without contention logs nothing."""

from __future__ import annotations

import logging

import pytest

from tests.cli.telemetry_fleet import started
from tests.support.processes import free_port, wait_until


@pytest.fixture(scope="module")
def fleet(private_server, tmp_path_factory):
    """One worker that logs at INFO, the usual level."""
    with started(private_server.url, concurrency=2, directory=tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def beginnings(lines):
    """Level and beginning of each line: the text between the task's id and the key."""
    return [
        (line["levelname"], line["text"].partition("] ")[2].partition(f" {line['key']!r}")[0])
        for line in lines
    ]


def await_lines(fleet, name, *expected):
    wait_until(lambda: len(fleet.lines(name)) >= len(expected), timeout=20, what=f"{len(expected)} lines")
    lines = fleet.lines(name)
    assert beginnings(lines) == list(expected)
    return lines


def test_a_waiter_logs_that_it_waits_and_how_long_it_waited(fleet, name):
    with fleet.hold(name) as lock:
        result = fleet.proj.work.delay(name)
        wait_until(lambda: fleet.lines(name), timeout=20, what="the busy line")
        holder = lock.owner
    run = result.get(timeout=20)
    waits, acquired = await_lines(fleet, name, ("INFO", "waits: lock"), ("INFO", "acquired lock"))
    assert f"is held by {holder}" in waits["text"]
    assert "after waiting for" in acquired["text"]
    assert (acquired["owner"], acquired["task_id"], acquired["key"]) == (run["owner"], result.id, name)
    assert waits["owner"].endswith(f":{result.id}")
    assert waits["owner"] != acquired["owner"]  # another delivery


def test_waiting_in_place_is_logged(fleet, name):
    with fleet.hold(name):
        result = fleet.proj.waiting.delay(name)
        wait_until(lambda: fleet.lines(name), timeout=20, what="the busy line")
    result.get(timeout=20)
    await_lines(fleet, name, ("INFO", "waits in place: lock"), ("INFO", "acquired lock"))


def test_a_skip_is_logged_in_one_line(fleet, name):
    """Semantics 11: event, log and counter."""
    with fleet.hold(name) as lock:
        result = fleet.proj.skipping.delay(name)
        result.get(timeout=20, propagate=False)
        [line] = await_lines(fleet, name, ("INFO", "is skipped: lock"))
        holder = lock.owner
    assert (line["key"], line["task_id"]) == (name, result.id)
    assert f"is held by {holder}" in line["text"]
    assert "again" not in line["text"]


def test_a_task_that_fails_says_so_and_its_error_names_the_task(fleet, name):
    with fleet.hold(name):
        result = fleet.proj.failing.delay(name)
        result.get(timeout=20, propagate=False)
        await_lines(fleet, name, ("INFO", "fails: lock"))
    assert str(result.result).startswith(f"task {fleet.proj.failing.name}: lock {name!r} is held by")
    assert result.result.task == fleet.proj.failing.name


def test_a_resting_key_says_that_it_rests(fleet, name):
    fleet.proj.work.apply_async((name,), lock_hold_at_least=30).get(timeout=20)
    result = fleet.proj.skipping.delay(name)
    result.get(timeout=20, propagate=False)
    [line] = await_lines(fleet, name, ("INFO", "is skipped: lock"))
    assert f"lock {name!r} rests for another" in line["text"]
    assert "renewed" not in line["text"]
    assert "rests for another" in str(result.result)


def test_a_lost_lock_is_an_error_and_the_end_of_its_run_a_warning(fleet, name):
    """Semantics 8: signal, log and flag."""
    result = fleet.proj.losing.delay(name)
    assert result.get(timeout=20) is True
    wait_until(lambda: len(fleet.lines(name)) >= 2, timeout=20, what="both lines")
    lines = sorted(fleet.lines(name), key=lambda line: line["levelname"])
    assert [line["levelname"] for line in lines] == ["ERROR", "WARNING"]
    lost, left = lines
    assert f"lock {name!r} of {lost['owner']} is lost: another client released or took it" in lost["text"]
    assert f"took lock {name!r}, which it had lost" in left["text"]
    assert {line["task_id"] for line in lines} == {result.id}


def test_the_parent_logs_the_release_for_a_dead_child(fleet, name):
    """Semantics 6: the parent process releases."""
    result = fleet.proj.dying.delay(name)
    wait_until(lambda: fleet.lines(name), timeout=20, what="the line")
    [line] = fleet.lines(name)
    assert line["text"] == f"released lock {name!r} of {line['owner']}, whose process died"
    assert (line["levelname"], line["task_id"], line["key"]) == ("WARNING", result.id, name)


def test_a_lock_server_that_is_down_is_a_warning(private_server, name, tmp_path):
    down = f"redis://127.0.0.1:{free_port()}/0"
    with started(private_server.url, directory=tmp_path, lock_url=down, queues=("alone",)) as fleet:
        result = fleet.proj.carefree.apply_async((name,), queue="alone")
        result.get(timeout=20)
        [line] = await_lines(fleet, name, ("WARNING", "runs without its lock: lock"))
    assert (line["key"], line["task_id"]) == (name, result.id)


def test_a_duplicate_that_is_not_published_logs_the_holder(fleet, name, caplog):
    caplog.set_level(logging.INFO, "celery_rlock")
    queue = f"without-workers-{name}"
    first = fleet.proj.once.apply_async((name,), queue=queue)
    assert fleet.proj.once.apply_async((name,), queue=queue).id == first.id
    [record] = [record for record in caplog.records if record.name == "celery_rlock"]
    assert "is not published" in record.getMessage()
    assert (record.key, record.task_id) == (name, first.id)


def test_at_debug_a_run_logs_acquire_and_release(fleet, name, caplog):
    caplog.set_level(logging.DEBUG, "celery_rlock")
    fleet.proj.work.apply((name,))
    texts = [record.getMessage() for record in caplog.records if record.name == "celery_rlock"]
    assert [text.partition("] ")[2].partition(" after")[0] for text in texts] == [
        f"acquired lock {name!r}",
        f"released lock {name!r}",
    ]


def test_a_run_without_contention_logs_nothing(fleet, name):
    """Also in a process that has logged something before."""
    results = [fleet.proj.work.delay(f"{name}-{i}") for i in range(20)]
    for result in results:
        result.get(timeout=30)
    with fleet.hold(name):  # a later line was written, so earlier ones would be too
        fleet.proj.skipping.delay(name).get(timeout=20, propagate=False)
    wait_until(lambda: fleet.lines(name), timeout=20, what="a line")
    assert beginnings(fleet.lines(name)) == [("INFO", "is skipped: lock")]
