"""A pool child that is killed frees its lock in well under a second, and not before it is dead.

Every run holds a file lock of the kernel's beside its own (`proj.alone`): a successor that began while
the victim was alive could not take it, and would record an overlap.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.processes import wait_until

SHARED = "crashes"
LEASE = 30
SOON = 8.0  # the lease is 30: only the parent can have freed it


@pytest.fixture(scope="module")
def worker(start_fleet):
    """One prefork worker for all the children that are killed here."""
    with start_fleet(1, concurrency=3, queues=[SHARED]) as [worker]:
        yield worker


@pytest.fixture
def crash(worker, ending_of):
    return lambda ending, **options: ending_of(ending, worker, queue=SHARED, successors=SHARED, **options)


def kill(sig):
    return lambda victim: os.kill(victim.pid, sig)


def revoke(sig):
    return lambda victim: victim.client.control.revoke(victim.id, terminate=True, signal=sig)


def nothing(victim):
    """It ends by itself."""


def test_a_killed_child(crash):
    """Semantics 6: kill -9, as the OOM killer does."""
    ending = crash("child kill -9", cause=kill(signal.SIGKILL))
    assert ending.free_after < SOON
    assert ending.completed == 0


def test_a_killed_child_whose_message_comes_back(crash):
    """Semantics 6: kill -9 with late ack and `reject_on_worker_lost`: the task runs again, once."""
    ending = crash("child kill -9, late ack", task="late_victim", cause=kill(signal.SIGKILL), completions=1)
    assert ending.free_after < SOON
    assert ending.completed == 1


def test_a_child_that_exits_on_its_own(crash):
    """Semantics 6: os._exit, as a crash in a C extension does."""
    ending = crash("child os._exit", args=("exit", 1), cause=nothing)
    assert ending.free_after < SOON
    assert ending.completed == 0


@pytest.mark.parametrize("how", ["loop", "in C", "deaf"])
def test_hard_time_limit(crash, how):
    """Semantics 6: hard time limit; also inside a C call, and where SIGTERM is ignored."""
    where = {"loop": "", "in C": " in a C call", "deaf": ", SIGTERM ignored"}[how]
    ending = crash(f"hard time limit{where}", args=(how,), cause=nothing, time_limit=2)
    assert ending.free_after < SOON
    assert ending.completed == 0


@pytest.mark.parametrize("sig", ["SIGTERM", "SIGKILL"])
def test_revoke_with_terminate(crash, sig):
    """Semantics 5 and 6: revoke with terminate."""
    ending = crash(f"revoke {sig}", cause=revoke(sig))
    assert ending.free_after < SOON
    assert ending.completed == 0


@pytest.mark.parametrize("sig", ["SIGTERM", "SIGKILL"])
def test_revoke_with_terminate_in_a_c_call(crash, sig):
    """Semantics 6: a C call hears no signal, so SIGTERM has to wait, and the lock stays until then."""
    ending = crash(f"revoke {sig} in a C call", args=("in C", 4), cause=revoke(sig))
    assert ending.free_after < SOON
    assert ending.completed == 0


def test_a_child_that_ignores_the_signal_keeps_its_lock_until_it_is_dead(
    worker, broker, send, name, records, count, store
):
    """Semantics 6: never before the child is really gone."""
    victim = send("victim", name, "deaf", queue=SHARED)
    [start] = wait_until(lambda: records(name), timeout=20, what="the victim to run")
    broker.control.revoke(victim.id, terminate=True, signal="SIGTERM")
    successor = send("work", name, queue=SHARED)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        assert any(field.endswith(victim.id.encode()) for field in store.hkeys(f"rlock:{{{name}}}"))
        time.sleep(0.01)
    os.kill(start["pid"], signal.SIGKILL)
    assert successor.get(timeout=SOON) == successor.id
    assert not count(name, "overlap")


def test_twenty_killed_children_in_a_row(worker, ending_of, name, rows, broker):
    """Semantics 6: the next holder runs at once, each time."""
    endings = [
        ending_of(
            None, worker, queue=SHARED, successors=SHARED, cause=kill(signal.SIGKILL), key=f"{name}-{turn}"
        )
        for turn in range(20)
    ]
    row = endings[0].row("child kill -9, 20 times", "prefork", broker.kind)
    row.free_ms = [ending.free_after * 1000 for ending in endings]
    row.running_ms = [ending.running_after * 1000 for ending in endings]
    rows.append(row)
    assert max(ending.running_after for ending in endings) < 5
    assert not any(ending.completed for ending in endings)


def test_without_the_reaper_the_lock_is_freed_all_the_same(start_fleet, ending_of, queue):
    """`rlock_reaper=False`: Celery itself finds the dead child, after seconds."""
    with start_fleet(1, concurrency=2, queues=[queue], conf={"rlock_reaper": False}) as [worker]:
        ending = ending_of(
            "child kill -9, rlock_reaper=False",
            worker,
            queue=queue,
            successors=queue,
            cause=kill(signal.SIGKILL),
        )
    assert ending.free_after < LEASE / 2
    assert ending.completed == 0


def test_a_request_class_that_bypasses_ours_is_told(start_fleet):
    with start_fleet(1, app="tests.faults.bypassing") as [worker]:
        warnings = [line for line in worker.log.splitlines() if "WARNING" in line and "bypasses" in line]
    assert len(warnings) == 1
    assert "tests.faults.bypassing.bypassing" in warnings[0]


def test_children_replaced_after_every_task_under_load(start_fleet, send, name, queue, count, records):
    """Semantics 1 and 6: a child that ends after its task frees nobody's lock and runs nothing again."""
    conf = {"worker_max_tasks_per_child": 1}
    with start_fleet(1, concurrency=3, queues=[queue], conf=conf):
        sent = [send("work", name, 0.05, queue=queue) for _ in range(20)]
        for result in sent:
            assert result.get(timeout=60) == result.id
    assert count(name, "end") == {result.id: 1 for result in sent}
    assert len({entry["pid"] for entry in records(name)}) == len(sent)
    assert not count(name, "overlap")
