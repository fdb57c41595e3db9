"""Hostile text in Redis and in messages reaches people escaped, and junk beside the locks crashes nothing."""

from __future__ import annotations

import json
import logging
import math
import uuid

import pytest
from celery import states

from celery_rlock import DuplicateTask, LockBusy
from celery_rlock.cli.survey import survey
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.log import about, logger, printable
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.cli.commands_app import make_app
from tests.cli.run_commands import PROJ, Locks, Terminal, documents, environment, run
from tests.cli.telemetry_fleet import ExporterProcess
from tests.support.daemon import running
from tests.support.processes import wait_until
from tests.support.workers import Worker

SOON = 30.0
FORGED = "[2026-01-01 00:00:00,000: CRITICAL/MainProcess] forged"
HOSTILE = f"w\x1b[2J\x1b]0;owned\x07\r\n{FORGED}\u202e"
OPTIONS = ("--timeout", "0")


def raw_controls(text):
    """The characters that a terminal or a log would obey. Line breaks of our own lines are not counted."""
    return {char for line in text.splitlines() for char in line if not char.isprintable() and char != "\t"}


@pytest.fixture(scope="module")
def app(private_server):
    return make_app(private_server.url)


@pytest.fixture(scope="module")
def locks(private_server):
    return Locks(private_server.url)


@pytest.fixture(scope="module")
def worker(private_server):
    with Worker.start(PROJ, env=environment(private_server.url), args=["-l", "DEBUG"]) as worker:
        yield worker


@pytest.fixture
def hostile_lock(locks):
    """A key that a holder with a hostile name, task and id has."""
    key = f"hostile-{uuid.uuid4().hex}"
    locks.hold(key, worker=HOSTILE, task_id=HOSTILE, task=HOSTILE)
    yield key
    locks.lock_server.client.delete(f"rlock:{{{key}}}")


@pytest.mark.parametrize(
    ("task", "state"),
    [("failing", states.FAILURE), ("skipping", states.REVOKED), ("counting", states.FAILURE)],
)
def test_a_hostile_holder_forges_no_log_line_and_no_stored_result(app, worker, hostile_lock, task, state):
    sent = app.tasks[f"proj.{task}"].apply_async((hostile_lock,), headers={"rlock_attempts": 3})
    sent.get(timeout=SOON, propagate=False)
    meta = sent.backend.get_task_meta(sent.id)
    assert meta["status"] == state
    stored = json.loads(app.backend.get(f"celery-task-meta-{sent.id}"))
    assert printable(HOSTILE) in str(meta["result"])
    assert not raw_controls(str(meta["result"]))
    assert not raw_controls(stored["traceback"] or "")
    for log in (worker.log, stored["traceback"] or ""):
        assert not raw_controls(log)
        assert not any(line.startswith(FORGED) for line in log.splitlines())


def test_a_hostile_task_id_is_escaped_in_the_error_of_a_duplicate(app, locks):
    key = f"hostile-{uuid.uuid4().hex}"
    locks.hold(key, worker=HOSTILE, task_id=HOSTILE, delivery="queued", task="proj.unique_or_error")
    with pytest.raises(DuplicateTask) as error:
        app.tasks["proj.unique_or_error"].delay(key)
    assert error.value.task_id == HOSTILE
    assert str(error.value).isprintable()
    assert str(LockBusy(key, printable(HOSTILE), 1.0)).isprintable()


def test_no_argument_of_a_log_line_and_no_field_beside_it_forges_a_line(caplog):
    with caplog.at_level(logging.DEBUG, "celery_rlock"):
        logger.warning("task %s: %s, %.1f s", HOSTILE, ValueError(HOSTILE), 1.5, extra=about(*[HOSTILE] * 3))
    [record] = caplog.records
    assert record.getMessage().isprintable()
    assert (record.key, record.owner, record.task_id) == (printable(HOSTILE),) * 3


@pytest.mark.parametrize(
    "words",
    [["ls"], ["show", "KEY", *OPTIONS], ["explain", "skipping", "KEY", *OPTIONS], ["watch", "--count", "1"]],
    ids=lambda words: words[0],
)
def test_a_hostile_holder_reaches_no_terminal(app, private_server, hostile_lock, words):
    chosen = [hostile_lock if word == "KEY" else word for word in words]
    done = run(app, *chosen)
    assert printable(HOSTILE) in done.stdout
    assert not raw_controls(done.stdout + done.stderr)
    if words[0] != "ls":
        return
    with Terminal(private_server.url, *chosen, columns=200) as terminal:
        terminal.end()
        assert b"\x1b[2J" not in terminal.raw
        assert b"\x1b]0;" not in terminal.raw
        assert "\u202e".encode() not in terminal.raw


HOSTILE_WORKERS = [
    f"w\x1b[2J{FORGED}@test",
    "twin\x1b]0;owned\x07\u202e@test",
    "twin\x1b]0;owned\x07\u202e@test",
]


def test_the_doctor_escapes_the_names_of_workers(private_server):
    """It names two workers with one name, and one worker with another prefix."""
    url = private_server.url.replace("/0", "/5")
    fleet = [
        Worker(
            PROJ,
            pool="solo",
            hostname=name,
            env=environment(url, **({} if number else {"rlock_prefix": "other:"})),
        )
        for number, name in enumerate(HOSTILE_WORKERS)
    ]
    shared = "more than one worker is called twin\\x1b]0;owned\\x07\\u202e@test"
    skipped = [word for check in CHECKS if check.asks == "server" for word in ("--skip", check.name)]
    with running(fleet):
        done = wait_until(
            lambda: [
                found
                for found in [run(make_app(url), "doctor", "--timeout", "1", *skipped)]
                if shared in found.stdout and "rlock_prefix of w\\x1b[2J" in found.stdout
            ],
            timeout=SOON,
            what="the doctor to name these workers",
        )[0]
    assert not raw_controls(done.stdout + done.stderr)


def test_what_a_user_types_is_escaped_too(app):
    for words in (
        ["ls", f"--sort={HOSTILE}"],
        ["ls", f"--{HOSTILE}"],
        [HOSTILE],
        ["show", HOSTILE, *OPTIONS],
        ["explain", HOSTILE],
        ["explain", "charge", f"--args={HOSTILE}"],
        ["explain", "charge", f"--kwargs={HOSTILE}"],
        ["explain", "charge", "1", "2", f"x{HOSTILE}"],
        ["release", HOSTILE, *OPTIONS],
        ["exporter", f"--host={HOSTILE}"],
    ):
        done = run(app, *words)
        assert done.exit_code in {1, 2, 3}, words
        assert isinstance(done.exception, SystemExit), words
        assert not raw_controls(done.stdout + done.stderr), words


#: Redis keys in the place of locks that no lock has written, each with its fields.
JUNK = {
    b"rlock:{%FF}": {"d:id": 1, "@token": 1},
    b"rlock:{\xff}": {"d:id": 1, "@token": 1},
    b"rlock:{%}": {"d:id": 1, "@token": 1},
    b"rlock:{depth}": {"d:id": "²", "@token": 1},
    b"rlock:{token}": {"d:id": 1, "@token": "9" * 5000},
    b"rlock:{depths}": {"d:id": "9" * 5000, "@token": 1},
    b"rlock:{since}": {"d:id": 1, "@token": 1, "@since": "9" * 5000},
    b"rlock:{later}": {"d:id": 1, "@token": 1, "@since": "99999999999999999"},
    b"rlock:{bytes}": {b"d:\xff": 1, b"@token": 1, b"@worker": b"\xff\x1b", b"@task": b"\xff\x1b"},
    b"rlock:{minus}": {"d:id": "-1", "@token": "-5", "@since": "-7"},
    b"rlock:{}": {"d:id": 1, "@token": 1},
}
SCORES = {"a:b:c": -math.inf, "no-colon": math.inf, "\x1b:\x1b:\x1b": -1e300, "": 1e300}


@pytest.fixture(scope="module")
def junk(private_server):
    """A server with junk beside one real lock, in a database of its own."""
    url = private_server.url.replace("/0", "/6")
    client = connect(url)
    for name, fields in JUNK.items():
        client.hset(name, mapping=fields)
        client.zadd(name + b":waiters", SCORES)
    client.set("rlock:{free}:waiters", "not a sorted set")
    client.hset("rlock:{held}", mapping={"d:id": 1, "@token": 1})
    client.set("rlock:{held}:waiters", "not a sorted set")
    Locks(url).hold("real")
    client.zadd("rlock:{real}:waiters", SCORES)
    return url


def test_junk_beside_the_locks_does_not_stop_a_list(junk):
    for more in ([], ["--json"], ["--sort", "token"]):
        done = run(make_app(junk), "ls", *more)
        assert done.exit_code == 0
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "real" in done.stdout
        assert not raw_controls(done.stdout + done.stderr)


@pytest.mark.parametrize("key", [*JUNK, b"real", b"free", b"held"])
def test_junk_can_be_looked_at(junk, key):
    name = key.decode(errors="surrogateescape")
    for words in (["show", name, *OPTIONS], ["show", name, *OPTIONS, "--json"]):
        done = run(make_app(junk), *words)
        assert isinstance(done.exception, SystemExit | None), (done.exception, done.stderr)
        assert done.exit_code in {0, 1}
        assert not raw_controls(done.stdout + done.stderr)
        for document in documents(done) if words[-1] == "--json" else ():
            json.dumps(document, allow_nan=False)
    assert run(make_app(junk), "explain", "skipping", name, *OPTIONS).exit_code in {0, 1, 2}
    assert run(make_app(junk), "release", name, "--yes", "--timeout", "0").exit_code in {0, 1}


def test_junk_stops_neither_a_survey_nor_the_exporter(junk):
    found = survey(RedisLockServer(connect(junk)), str, longest=30)
    assert found.is_complete
    assert all(map(math.isfinite, found.oldest.values()))
    Locks(junk).hold("real")  # another test may have released it
    with ExporterProcess(junk).started() as exporter:
        exporter.await_value(1, "exporter_survey_complete")
        shown = json.loads(exporter.get("/locks.json"))["locks"]
        assert "real" in [lock["key"] for lock in shown]
        assert not raw_controls("".join(waiter["task_id"] for lock in shown for waiter in lock["in_line"]))


def test_inspect_locks_answers_beside_junk(app, worker, locks):
    """A waiter whose message names a Redis key that is none of ours does not spoil the answer."""
    key = f"junk-{uuid.uuid4().hex}"
    locks.hold(f"account:{key}")
    locks.lock_server.client.hset("rlock:{%FF}", mapping={"d:id": 1, "@token": 1})
    headers = {"rlock_waits_for": "rlock:{%FF}", "rlock_attempts": 1, "rlock_since": 1}
    sent = app.tasks["proj.charge"].apply_async((key,), headers=headers, countdown=600)
    inspect = app.control.inspect(destination=[worker.nodename], timeout=5)
    wait_until(lambda: sent.id in json.dumps(inspect.scheduled()), timeout=SOON, what="the worker to have it")
    [answer] = inspect._request("locks").values()
    sent.revoke()
    assert "error" not in answer
    assert sent.id in {row["id"] for row in answer["waiting"]}
    locks.lock_server.client.delete("rlock:{%FF}")
