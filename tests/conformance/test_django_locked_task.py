"""`celery_rlock.django.LockedTask`: with transactions, two beats, and results in the database."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter

import pytest

from tests.conformance.django_project import NAME
from tests.conformance.runs import django_environment
from tests.support.daemon import ROOT, running
from tests.support.fleet import make_worker
from tests.support.processes import wait_until
from tests.support.workers import Beat

PROJECT = "tests.conformance.django_project"

IN_TRANSACTIONS = """
import django
django.setup()
from django.db import transaction
from django.test import TestCase
from tests.conformance.django_project import app, unique

app.conf.update(broker_url="memory://", rlock_url="memory://")
states = []
with transaction.atomic():
    unique.delay_on_commit(1)
    unique.apply_async_on_commit((2,), lock_queue_ttl=60)
    states += [unique.lock_of(1).state, unique.lock_of(2).state]
states += [unique.lock_of(1).state, unique.lock_of(2).state]
assert 59 < unique.lock_of(2).holders[0].lease_left <= 60
try:
    with transaction.atomic():
        unique.delay_on_commit(3)
        raise ValueError
except ValueError:
    states.append(unique.lock_of(3).state)
with transaction.atomic():  # as a TestCase has around each test
    with TestCase.captureOnCommitCallbacks(execute=True):
        unique.delay_on_commit(4)
    states.append(unique.lock_of(4).state)
print(*states)
"""


@pytest.fixture
def database(tmp_path):
    return str(tmp_path / "database")


def run(env, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_task_is_published_and_takes_its_key_at_the_commit(database):
    env = django_environment(database)
    assert run(env, "-c", IN_TRANSACTIONS).split() == ["free", "free", "queued", "queued", "free", "queued"]


@pytest.mark.slow
def test_two_beats_of_one_database_do_not_run_a_task_twice(environment, fleet_redis, database, records):
    env = {**environment, "RLOCK_TEST_LOCKS": fleet_redis.url, **django_environment(database)}
    run(env, "-m", PROJECT)
    worker = make_worker(PROJECT, env, queues=[NAME], concurrency=2)
    beats = [Beat(f"{PROJECT}:app", env=env, args=["-S", "django", "--max-interval", "1"]) for _ in range(2)]
    with running([worker, *beats]):
        wait_until(
            lambda: (found := states(database))["REVOKED"] >= 2 and found["SUCCESS"] >= 3,
            timeout=60,
            what="both beats to publish",
            every=0.2,
        )
    events = [entry["event"] for entry in records(NAME)]
    assert events[: len(events) // 2 * 2] == ["start", "end"] * (len(events) // 2)
    assert {name for (name,) in rows(database, "periodic_task_name")} == {"tick every second"}
    reasons = [json.loads(result) for state, result in rows(database, "status, result") if state == "REVOKED"]
    assert all("skipped: lock 'tick'" in str(reason) for reason in reasons)


def states(database):
    return Counter(state for (state,) in rows(database, "status"))


def rows(database, columns):
    with sqlite3.connect(database) as connection:
        return connection.execute(f"SELECT {columns} FROM django_celery_results_taskresult").fetchall()
