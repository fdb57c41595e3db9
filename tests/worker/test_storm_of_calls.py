"""The promise of `lock_pending`, while many processes publish at random and runs go on."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time

import pytest

from tests.support.daemon import ROOT
from tests.support.fleet import kill
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON

PUBLISHERS = 4
SECONDS = 3


@pytest.fixture
def storm(environment, name, queue):
    """Starts the publishers. Call what it returns for all their calls, the first ones first."""
    running = []

    def start(task, seconds=SECONDS, **env):
        command = [sys.executable, "-m", "tests.worker.storm", task, name, queue, str(seconds)]
        running.extend(
            subprocess.Popen(
                [*command, str(seed)],
                cwd=ROOT,
                env={**os.environ, **environment, **env},
                stdout=subprocess.PIPE,
            )
            for seed in range(PUBLISHERS)
        )
        return lambda: sorted(
            (json.loads(line) for one in running for line in one.communicate()[0].splitlines()),
            key=lambda call: call["made"],
        )

    yield start
    for one in running:
        one.kill()
        one.wait()


def first_calls(calls):
    """Of each published task, the call that returned first."""
    found = {}
    for call in sorted(calls, key=lambda call: call["returned"]):
        found.setdefault(call["id"], call)
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_after_every_call_a_run_begins_and_at_most_one_is_queued(
    proj, name, queue, start_fleet, storm, starts, overlaps, records, pending, pool
):
    """Semantics 1 and 18."""
    with start_fleet(2, queues=[queue], pool=pool, concurrency=2):
        calls = storm("rebuild")()
        published = first_calls(calls)
        wait_until(lambda: len(records(name, "end")) >= len(published), timeout=60, what="all runs")
    runs = {entry["id"]: entry for entry in records(name, "start")}
    assert len(runs) == len(records(name, "start")) == len(published)
    assert runs.keys() == published.keys()
    assert all(runs[call["id"]]["at"] > call["made"] for call in calls)
    # A run takes its lock, and so its token, before it gives up its place. Only then the next call is queued.
    in_order = sorted(runs.values(), key=lambda run: run["token"])
    assert all(
        run["token"] / 1e6 < published[later["id"]]["returned"] for run, later in itertools.pairwise(in_order)
    )
    assert (overlaps(name), pending(name)) == (0, [])
    assert len(calls) > len(published) > 5


def test_the_newest_version_of_every_burst_runs(proj, name, queue, start_fleet, storm, records, overlaps):
    """Semantics 19: every call either runs, or a later one does. The last one runs last."""
    with start_fleet(1, queues=[queue], concurrency=3):
        calls = storm("save")()
        last = proj.save.apply_async((name, time.time()), queue=queue)
        last.get(timeout=SOON)
        wait_until(
            lambda: all(proj.app.AsyncResult(call["id"]).ready() for call in calls),
            timeout=60,
            what="all results",
        )
    versions = [entry["version"] for entry in records(name, "version")]
    assert overlaps(name) == 0
    states = {call["id"]: proj.app.AsyncResult(call["id"]).state for call in calls}
    assert set(states.values()) == {"SUCCESS", "REVOKED"}
    assert len(versions) == len(set(versions)) == list(states.values()).count("SUCCESS") + 1
    assert all(any(version >= call["made"] for version in versions) for call in calls)


@pytest.mark.slow
def test_after_every_call_a_run_begins_though_workers_are_killed(
    proj, name, queue, start_fleet, storm, records, rabbit
):
    """Semantics 7, 10 and 18, with `acks_late`. RabbitMQ loses no message that a killed worker has taken."""
    env, conf = {"RLOCK_TEST_BROKER": rabbit.url}, {"rlock_ttl": 1}
    with start_fleet(2, queues=[queue], env=env, conf=conf, concurrency=2) as workers:
        result = storm("rebuild_late", 4, **env)
        ran_first = wait_until(lambda: records(name), timeout=60, what="a run")[0]["worker"]
        time.sleep(1)
        kill(next(worker for worker in workers if worker.nodename == ran_first))
        calls = result()

        def have_begun():
            """Of each task the last start counts: a run that was killed comes again."""
            started = {entry["id"]: entry["at"] for entry in records(name, "start")}
            return all(started.get(call["id"], 0) > call["made"] for call in calls)

        wait_until(have_begun, timeout=60, what="a run after each call")
