"""django-celery-beat publishes a locked task as a plain one, and django-celery-results stores its result."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from tests.conformance.notes import RUN, notes_key
from tests.conformance.runs import PROJ, django_environment
from tests.support.daemon import ROOT, running
from tests.support.fleet import make_worker
from tests.support.processes import wait_until
from tests.support.workers import Beat

NAME = "beat"
TWINS = ("early.plain.function.add", "early.locked.function.add")
COLUMNS = "status, result, task_args, task_kwargs, periodic_task_name"


@pytest.mark.slow
def test_an_entry_of_a_locked_task_runs_as_one_of_a_plain_task(environment, fleet_redis, tmp_path):
    database = str(tmp_path / "database")
    locks = {"RLOCK_TEST_LOCKS": fleet_redis.url, RUN: NAME}
    env = {**environment, **locks, **django_environment(database)}
    conf = {"result_backend": "django-db", "task_default_queue": NAME, "rlock_prefix": NAME}
    periodic("make", env)
    worker = make_worker(PROJ, env, conf=conf, queues=[NAME])
    beat = Beat(f"{PROJ}:app", env={**env, "RLOCK_TEST_CONF": json.dumps(conf)}, args=["-S", "django"])
    with running([worker, beat]):
        wait_until(lambda: len(results(database)) == 2, timeout=60, what="both results", every=0.2)
        plain, locked = results(database)
        wait_until(lambda: has_run(env), timeout=60, what="beat to store that both have run", every=0.5)
    assert plain[1:-1] == locked[1:-1]
    assert plain[1:3] == ("SUCCESS", "5")
    assert [row[-1] for row in (plain, locked)] == [f"once {task}" for task in TWINS]
    store = fleet_redis.client()
    kinds = [
        [json.loads(note)["kind"] for note in store.lrange(notes_key(NAME, task.rpartition(".")[0]), 0, -1)]
        for task in TWINS
    ]
    assert sorted(kinds[0]) == sorted(kinds[1]) != []


def has_run(env):
    """Beat switches an entry off when it has run once."""
    plain, locked = map(json.loads, periodic("show", env).splitlines())
    return plain == locked and not plain["enabled"]


def results(database):
    """A row of each twin's stored result, the plain one first."""
    with sqlite3.connect(database) as connection:
        query = f"SELECT task_name, {COLUMNS} FROM django_celery_results_taskresult WHERE status = 'SUCCESS'"
        rows = connection.execute(query).fetchall()
    return sorted(rows, key=lambda row: TWINS.index(row[0]))


def periodic(what, env):
    command = [sys.executable, "-m", "tests.conformance.periodic", what, *TWINS]
    environ = {**os.environ, **env}
    return subprocess.run(command, env=environ, cwd=ROOT, check=True, capture_output=True, text=True).stdout
