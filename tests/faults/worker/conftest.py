"""Real workers of the project in `tasks`, with each broker."""

from __future__ import annotations

import pytest
from celery import states

from tests.faults.worker.endings import ENDINGS, Ending, EndingRow, Victim, death_of, end_of_ownership
from tests.support.fixtures import sender
from tests.support.processes import wait_until

WITHIN = 20.0


@pytest.fixture(scope="session")
def project():
    return "tests.faults.worker.tasks"


@pytest.fixture(scope="module")
def environment(fleet_redis, broker, tmp_path_factory):
    """The environment variables of a worker."""
    return {
        "RLOCK_TEST_BROKER": broker.conf.broker_url,
        "RLOCK_TEST_BACKEND": fleet_redis.url,
        "RLOCK_TEST_FILES": str(tmp_path_factory.mktemp("file-locks")),
    }


@pytest.fixture(scope="module")
def send(project, broker, backend):
    """Publishes a task by its name, over each broker in turn."""
    return sender(project, broker, backend)


@pytest.fixture
def end_run(broker, send, records, count, store, name):
    """Lets one task run, another one wait for its lock, ends the first by `cause`, and measures the rest.

    A `how` becomes a row of docs/faults.md. `completions` is how often the first task has to complete,
    redeliveries included. Any two runs that overlap fail the test.
    """

    def run(how, worker, *, queue, successors, cause, pool="prefork", key=name, completions=0, **options):
        sent = send(options.pop("task", "victim"), key, *options.pop("args", ()), queue=queue, **options)
        start = wait_until(lambda: records(key), timeout=30, what="the victim to run")[0]
        freed = end_of_ownership(store, f"rlock:{{{key}}}", sent.id)
        died = death_of(start["pid"])
        successor = send("work", key, queue=successors)
        wait_until(lambda: successor.state == states.RETRY, timeout=10, what="the successor to wait")
        cause(Victim(broker, worker, sent.id, start["pid"]))
        assert freed.join(WITHIN), f"the lock was not free {WITHIN} s after {how}"
        assert successor.get(timeout=WITHIN) == successor.id
        wait_until(lambda: count(key, "end")[sent.id] >= completions, timeout=WITHIN, what="the victim's end")
        left = [entry for entry in records(key, "left") if entry["pid"] == start["pid"]]
        over_at = left[0]["at"] if left and left[0]["id"] == sent.id else died.join(WITHIN)
        running_at = next(entry["at"] for entry in records(key)[1:] if entry["id"] == successor.id)
        ending = Ending(max(0, freed.at - over_at), running_at - over_at, count(key, "end")[sent.id])
        if how:
            ENDINGS.rows.append(EndingRow(how, pool, broker.kind, [ending]))
        assert not count(key, "overlap")
        return ending

    return run
