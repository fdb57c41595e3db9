"""A pool child that is killed frees its lock in well under a second, and never before it is dead.

Every run holds a file lock of the kernel beside its own lock (`tasks.no_overlap`). A successor that starts
while the victim is alive cannot take the file lock, and records an overlap.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.faults.worker.endings import ENDINGS, EndingRow
from tests.support.processes import wait_until

QUEUE = "killed-children"
LEASE = 30
SOON = 8.0  # the lease is 30 s, so only the worker's parent process can have freed the lock


@pytest.fixture(scope="module")
def worker(start_fleet):
    """One prefork worker for all the children that these tests kill."""
    with start_fleet(1, concurrency=3, queues=[QUEUE]) as [worker]:
        yield worker


@pytest.fixture
def end_child(worker, end_run):
    return lambda how, **options: end_run(how, worker, queue=QUEUE, successors=QUEUE, **options)


def kill(sig):
    return lambda victim: os.kill(victim.pid, sig)


def revoke(sig):
    return lambda victim: victim.client.control.revoke(victim.id, terminate=True, signal=sig)


def nothing(victim):
    """The run ends without help."""


def test_a_killed_child_frees_its_lock(end_child):
    """Semantics 6: kill -9, as the OOM killer does."""
    ending = end_child("child kill -9", cause=kill(signal.SIGKILL))
    assert ending.free_after < SOON
    assert ending.completed == 0


def test_a_killed_child_with_late_ack_frees_its_lock_and_its_task_runs_again(end_child):
    """Semantics 6: kill -9 with late ack and `reject_on_worker_lost`; the task completes once."""
    ending = end_child(
        "child kill -9, late ack", task="late_victim", cause=kill(signal.SIGKILL), completions=1
    )
    assert ending.free_after < SOON
    assert ending.completed == 1


@pytest.mark.slow
def test_a_child_that_exits_frees_its_lock(end_child):
    """Semantics 6: os._exit, as a crash in a C extension does."""
    ending = end_child("child os._exit", args=("exit", 1), cause=nothing)
    assert ending.free_after < SOON
    assert ending.completed == 0


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("loop", ""),
        pytest.param("in C", " in a C call", marks=pytest.mark.slow),
        pytest.param("ignore SIGTERM", ", SIGTERM ignored", marks=pytest.mark.slow),
    ],
    ids=["loop", "in C", "ignore SIGTERM"],
)
def test_hard_time_limit(end_child, how, where):
    """Semantics 6: the hard time limit frees the lock, also in a C call and where SIGTERM is ignored."""
    ending = end_child(f"hard time limit{where}", args=(how,), cause=nothing, time_limit=2)
    assert ending.free_after < SOON
    assert ending.completed == 0


@pytest.mark.parametrize("sig", ["SIGTERM", pytest.param("SIGKILL", marks=pytest.mark.slow)])
def test_revoke_with_terminate(end_child, sig):
    """Semantics 5 and 6: revoke with terminate frees the lock."""
    ending = end_child(f"revoke {sig}", cause=revoke(sig))
    assert ending.free_after < SOON
    assert ending.completed == 0


@pytest.mark.slow
@pytest.mark.parametrize("sig", ["SIGTERM", "SIGKILL"])
def test_revoke_with_terminate_in_a_c_call(end_child, sig):
    """Semantics 6: a C call handles no signal, so after SIGTERM the lock stays until the call returns."""
    ending = end_child(f"revoke {sig} in a C call", args=("in C", 4), cause=revoke(sig))
    assert ending.free_after < SOON
    assert ending.completed == 0


def test_a_child_that_ignores_the_signal_keeps_its_lock_until_it_is_dead(
    worker, broker, send, name, records, count, store
):
    """Semantics 6: the parent never frees the lock of a child that is alive."""
    victim = send("victim", name, "ignore SIGTERM", queue=QUEUE)
    [start] = wait_until(lambda: records(name), timeout=20, what="the victim to run")
    broker.control.revoke(victim.id, terminate=True, signal="SIGTERM")
    successor = send("work", name, queue=QUEUE)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        assert any(field.endswith(victim.id.encode()) for field in store.hkeys(f"rlock:{{{name}}}"))
        time.sleep(0.01)
    os.kill(start["pid"], signal.SIGKILL)
    assert successor.get(timeout=SOON) == successor.id
    assert not count(name, "overlap")


@pytest.mark.slow
def test_twenty_killed_children_in_a_row(end_child, name, broker):
    """Semantics 6: the next holder runs at once, each time."""
    cause = kill(signal.SIGKILL)
    endings = [end_child(None, cause=cause, key=f"{name}-{turn}") for turn in range(20)]
    ENDINGS.rows.append(EndingRow("child kill -9, 20 times", "prefork", broker.kind, endings))
    assert max(ending.running_after for ending in endings) < 5
    assert not any(ending.completed for ending in endings)


@pytest.mark.slow
def test_without_the_reaper_celery_finds_the_dead_child(start_fleet, end_run, queue):
    """With `rlock_reaper=False` Celery itself finds the dead child, which takes seconds."""
    with start_fleet(1, concurrency=2, queues=[queue], conf={"rlock_reaper": False}) as [worker]:
        ending = end_run(
            "child kill -9, rlock_reaper=False",
            worker,
            queue=queue,
            successors=queue,
            cause=kill(signal.SIGKILL),
        )
    assert ending.free_after < LEASE / 2
    assert ending.completed == 0


def test_a_worker_warns_of_a_request_class_that_does_not_know_the_lock(worker):
    """Such a class cannot release the lock of a dead child."""
    [warning] = [line for line in worker.log.splitlines() if "WARNING" in line and "OwnRequest" in line]
    assert "tests.faults.worker.tasks.with_own_request" in warning


@pytest.mark.slow
def test_children_that_are_replaced_after_every_task_run_each_task_once(
    start_fleet, send, name, queue, count, records
):
    """Semantics 1 and 6: a child that ends after its task frees no other lock, and no task runs again."""
    conf = {"worker_max_tasks_per_child": 1}
    with start_fleet(1, concurrency=3, queues=[queue], conf=conf):
        sent = [send("work", name, 0.05, queue=queue) for _ in range(20)]
        for result in sent:
            assert result.get(timeout=60) == result.id
    assert count(name, "end") == {result.id: 1 for result in sent}
    assert len({entry["pid"] for entry in records(name)}) == len(sent)
    assert not count(name, "overlap")


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_an_overlap_is_recorded(worker, send, name, count, store):
    """The overlap check itself works: it sees a successor whose victim is alive and has lost its lock."""
    victim = send("victim", name, "loop", 5, queue=QUEUE)
    wait_until(lambda: count(name, "start"), timeout=20, what="the victim to run")
    store.delete(f"rlock:{{{name}}}")
    successor = send("work", name, queue=QUEUE)
    wait_until(lambda: count(name, "overlap"), timeout=20, what="the overlap")
    assert count(name, "overlap") == {successor.id: 1}
    assert count(name, "start") == {victim.id: 1}
