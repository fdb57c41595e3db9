"""`lock_busy="replace"`: the newest call ends the run that holds the lock, and runs when that is gone."""

from __future__ import annotations

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from tests.support.processes import wait_until
from tests.worker.awaiting import await_log, lock

#: The pool and the broker of two workers. Each has its own queue, because solo takes one task at a time.
FLEETS = ["prefork", "threads", "gevent", "solo", "prefork-rabbitmq"]


@pytest.fixture(scope="module", params=FLEETS)
def fleet(request, start_fleet):
    pool, _, broker = request.param.partition("-")
    env = {"RLOCK_TEST_BROKER": request.getfixturevalue("rabbit").url} if broker else {}
    with (
        start_fleet(1, pool=pool, concurrency=3, queues=[queue_of(request.param, 0)], env=env) as [one],
        start_fleet(1, pool=pool, concurrency=3, queues=[queue_of(request.param, 1)], env=env) as [other],
    ):
        yield request.param, [one, other]


def queue_of(kind, number):
    return f"replace-{kind}-{number}"


@pytest.fixture
def publish(fleet, proj, rabbit_or_redis):
    """Publishes a call for the first worker, or for the second."""
    kind, _ = fleet

    def publish(task, *args, at=0, **options):
        with rabbit_or_redis() as connection:
            return task.apply_async(args, queue=queue_of(kind, at), connection=connection, **options)

    return publish


@pytest.fixture
def rabbit_or_redis(fleet, proj, request):
    def connect():
        if fleet[0].endswith("rabbitmq"):
            return proj.app.connection_for_write(request.getfixturevalue("rabbit").url)
        return proj.app.connection_for_write()

    return connect


@pytest.fixture
def started(records):
    def started(name, result):
        wait_until(
            lambda: any(entry["id"] == result.id for entry in records(name, "start")),
            timeout=30,
            what=f"the start of {result.id}",
        )

    return started


def revoked(result, by, timeout=30):
    with pytest.raises(TaskRevokedError, match=f"replaced by task {by.id}"):
        result.get(timeout=timeout)
    assert result.state == states.REVOKED


@pytest.mark.parametrize("late", [False, True])
def test_the_newer_call_ends_the_run_and_runs(
    fleet, publish, proj, name, started, records, starts, locks, late
):
    """Semantics 20: the run is REVOKED with the reason, and gone when the newcomer starts."""
    task = proj.restarting_late if late else proj.restarting
    older = publish(task, name, "long")
    started(name, older)
    newer = publish(task, name, at=1)
    assert newer.get(timeout=40) == "short"
    revoked(older, newer)
    assert starts(name) == [older.id, newer.id]
    order = [(entry["event"], entry["id"]) for entry in records(name) if entry["event"] in {"start", "end"}]
    assert order == [("start", older.id), ("end", older.id), ("start", newer.id), ("end", newer.id)]
    [told] = records(name, "replaced")
    assert (told["id"], told["by"]) == (older.id, newer.id)
    await_log(fleet[1], f"is replaced by task {newer.id}")
    await_log(fleet[1], f"[{newer.id}] replaces the run that has its lock")
    wait_until(lambda: not locks.exists(lock(name)), timeout=20, what="a free lock")


@pytest.mark.parametrize("how", ["turned", "swallowed", "retried"])
def test_what_the_code_makes_of_the_interruption_does_not_matter(publish, proj, name, started, starts, how):
    """Semantics 20: another error, a return or a retry: the run is REVOKED, and nothing of it runs again."""
    older = publish(proj.restarting, name, how)
    started(name, older)
    newer = publish(proj.restarting, name, at=1)
    newer.get(timeout=40)
    revoked(older, newer)
    last = publish(proj.restarting, name)
    last.get(timeout=40)
    assert starts(name) == [older.id, newer.id, last.id]


@pytest.mark.parametrize("how", ["long", "turned"])
def test_a_replaced_run_is_not_retried_automatically(publish, proj, name, started, starts, how):
    older = publish(proj.restarting_auto, name, how)
    started(name, older)
    newer = publish(proj.restarting_auto, name, at=1)
    newer.get(timeout=40)
    revoked(older, newer)
    publish(proj.restarting_auto, name).get(timeout=40)
    assert starts(name).count(older.id) == 1


def test_of_many_calls_that_wait_only_the_newest_runs(publish, proj, name, started, starts, tell):
    """Semantics 20: a burst of calls ends in one run. They wait for a task that they may not end."""
    first = publish(proj.restarting_another, name, "stubborn")
    started(name, first)
    burst = []
    for _ in range(4):
        burst.append(publish(proj.restarting, name, at=1))
        wait_until(lambda: burst[-1].state != states.PENDING, timeout=40, what="a worker to try the call")
    tell(name)
    *older, newest = burst
    assert newest.get(timeout=60) == "short"
    for call in older:
        with pytest.raises(TaskRevokedError, match="replaced by task"):
            call.get(timeout=60)
    assert first.get(timeout=40) == "stubborn"
    assert starts(name) == [first.id, newest.id]


def test_a_run_that_goes_on_is_terminated_where_the_pool_can(
    fleet, publish, proj, name, started, starts, tell
):
    """Semantics 20: otherwise the newcomer waits for its end."""
    older = publish(proj.restarting, name, "stubborn")
    started(name, older)
    newer = publish(proj.restarting, name, at=1)
    if fleet[0] in {"threads", "solo"}:
        await_log(fleet[1], "asks its worker to terminate it", timeout=40)
        if fleet[0] == "threads":
            await_log(fleet[1], "cannot terminate a task", timeout=20)
        assert newer.state == states.RETRY
        tell(name)  # a thread that sleeps is not interrupted again
        wait_until(lambda: starts(name) != [older.id], timeout=90, what="the newcomer")
    newer.get(timeout=60)
    revoked(older, newer)
    assert starts(name) == [older.id, newer.id]


def test_a_blocking_call_is_interrupted(fleet, publish, proj, name, started, starts):
    if fleet[0] == "threads":
        pytest.skip("a thread in a blocking call cannot be interrupted: docs/semantics.md says so")
    older = publish(proj.restarting, name, "blocked")
    started(name, older)
    newer = publish(proj.restarting, name, at=1)
    newer.get(timeout=40)
    revoked(older, newer)


@pytest.fixture
def prefork(fleet):
    if fleet[0] != "prefork":
        pytest.skip("one pool shows it")
    return fleet[1]
