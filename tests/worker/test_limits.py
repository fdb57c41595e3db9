"""`lock_limit`: several runs under one key, each in a place of its own."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest
from celery import states

from celery_rlock import ConfigurationError, LockBusy
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.fixtures import Publisher, sender
from tests.support.fleet import kill
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, await_state, kill_child, lock
from tests.worker.proj.limited import LARGE, LIMIT, PERIOD, RATE

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.fixture
def most_at_once(records):
    """The largest number of runs under a name at one time. `killed` says when processes were killed."""

    def of(name, killed=None):
        ends = {(entry["id"], entry["token"]): entry["at"] for entry in records(name, "end")}
        changes = []
        for entry in records(name, "start"):
            end = ends.get((entry["id"], entry["token"])) or (killed or {}).get(entry["pid"])
            if end is not None:
                changes += [(entry["at"], 1), (end, -1)]
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most

    return of


@pytest.fixture
def place(redis_for_locks):
    """Holds a place of a key in this process, as another owner than every task."""
    lock_server = RedisLockServer(connect(redis_for_locks.url))
    return lambda name, limit=LIMIT: ReentrantLock(name, lock_server=lock_server, limit=limit, ttl=60)


def test_no_more_than_the_limit_run_at_once_and_all_run(proj, name, most_at_once, records):
    """Semantics 1 and 17: woken, not polled, because the backoff is a minute."""
    results = [proj.limited.delay(name, 0.05) for _ in range(20)]
    done = [result.get(timeout=60) for result in results]
    assert most_at_once(name) == LIMIT
    assert {one["slot"] for one in done} == set(range(LIMIT))
    assert len({one["token"] for one in done}) == len(records(name, "start")) == 20


def test_one_release_wakes_one_waiter(proj, name, place, starts, waiters):
    """Semantics 17."""
    with place(name):
        proj.limited.delay(name, until=f"{name}-1")
        wait_until(lambda: starts(name), timeout=SOON, what="the first run")
        for _ in range(2):
            proj.limited.delay(name, until=f"{name}-1")
        waiters.await_count(name, 2)
    wait_until(lambda: len(starts(name)) == 2, timeout=SOON, what="the second run")
    waiters.await_count(name, 1)
    assert len(starts(name)) == 2


@pytest.fixture(autouse=True)
def tell_them(tell, name):
    """Ends the runs that wait until they are told."""
    yield
    tell(f"{name}-1")


def test_a_killed_childs_place_is_free_at_once_and_the_others_keep_theirs(
    proj, fleet, name, records, tell, place, locks
):
    """Semantics 6 and 17: the crash releases one place of the key."""
    proj.limited.delay(name, until=f"{name}-1")
    wait_until(lambda: records(name, "start"), timeout=SOON, what="the first run")
    victim = proj.limited.delay(name, until=f"{name}-2")
    run = wait_until(
        lambda: [entry for entry in records(name, "start") if entry["id"] == victim.id],
        timeout=SOON,
        what="the second run",
    )[0]
    waiter = proj.limited.delay(name)
    kill_child(proj.app, fleet, run["pid"])
    assert waiter.get(timeout=SOON)["slot"] == run["slot"]
    assert locks.hlen(lock(name)) == 1
    tell(f"{name}-1")


def test_the_arguments_decide_the_limit(proj, name, starts):
    """A callable: `pro` has two places, the others have one."""
    for _ in range(LIMIT):
        proj.limited_by_plan.delay(name, "pro", until=f"{name}-1")
    wait_until(lambda: len(starts(name)) == LIMIT, timeout=SOON, what="two runs")
    others = [proj.limited_by_plan.delay(name, "free"), proj.limited_by_plan.delay(name, "pro")]
    for other in others:
        await_state(other, states.RETRY)
    assert len(starts(name)) == LIMIT


def test_a_limit_of_one_call(proj, name, starts):
    proj.limited.delay(name, until=f"{name}-1")
    wait_until(lambda: starts(name), timeout=SOON, what="the first run")
    await_state(proj.limited.apply_async((name,), lock_limit=1), states.RETRY)
    assert len(starts(name)) == 1


def test_each_of_several_keys_has_its_own_limit(proj, name, place):
    with place(f"places:{name}", LARGE):
        assert proj.limited_keys.delay(name).get(timeout=SOON) == {f"whole:{name}": 0, f"places:{name}": 1}


def test_a_place_that_was_taken_in_vain_does_not_rest(proj, name, place, locks):
    """The second key is busy, so the task does not run, and leaves the first one."""
    with place(f"b:{name}", 1):
        await_state(proj.rated_keys.delay(name), states.REVOKED)
        assert not locks.exists(lock(f"a:{name}"))
    assert proj.rated_keys.delay(name).get(timeout=SOON) == {f"a:{name}": 0, f"b:{name}": 0}
    assert locks.hlen(lock(f"a:{name}")) == 1


def test_a_limit_that_is_no_number_is_an_error_before_the_task_is_published(proj, name, store):
    """Semantics 16."""
    with pytest.raises(
        ConfigurationError, match=r"lock_limit of task .*limited_by_nothing must return .* None"
    ):
        proj.limited_by_nothing.delay(name)
    with pytest.raises(ConfigurationError, match="must return"):
        proj.limited_by_nothing(name)
    with pytest.raises(ConfigurationError, match="lock_limit of a call"):
        proj.limited.apply_async((name,), lock_limit=0)
    with pytest.raises(ConfigurationError, match="lock_from"):
        proj.limited.apply_async((name,), lock_from="publish")


def test_a_run_enters_its_own_place_again(proj, name):
    """Semantics 2."""
    result = proj.limited_and_nested.delay(name).get(timeout=SOON)
    assert result == {"outer": 0, "inner": 0, "depth": 1}


def test_a_lock_of_the_whole_key_and_limited_tasks_keep_each_other_out(proj, name, place, starts, hold):
    """A limit that changes between two deployments: each owner keeps its own."""
    with hold(name):
        result = proj.limited.delay(name)
        await_state(result, states.RETRY)
        assert starts(name) == []
    assert result.get(timeout=SOON)
    with place(name), pytest.raises(LockBusy):
        proj.limited.apply_async((name,), lock_limit=1, lock_busy="fail").get(timeout=SOON)
    assert proj.limited.apply_async((name,), lock_limit=1, lock_busy="fail").get(timeout=SOON)


def test_a_redelivered_message_waits_though_a_place_is_free(proj, name, starts, tell, count):
    """Semantics 10: the second delivery is dropped when the first has ended."""
    first = proj.limited_late.delay(name, until=f"{name}-2")
    wait_until(lambda: starts(name), timeout=SOON, what="the first delivery")
    proj.limited_late.apply_async((name,), {"until": f"{name}-2"}, task_id=first.id)
    other = proj.limited_late.delay(name)
    assert other.get(timeout=SOON)  # there are places
    assert sorted(starts(name)) == sorted([first.id, other.id])
    tell(f"{name}-2")
    first.get(timeout=SOON)
    last = proj.limited_late.delay(name)
    assert last.get(timeout=SOON)
    assert count(name, "start") == Counter([first.id, other.id, last.id])


@pytest.mark.parametrize("dying", [False, True], ids=["all end", "some are killed"])
def test_a_rate_is_never_exceeded_in_any_period(proj, fleet, name, records, dying):
    """Semantics 17: "20 per minute", thirty times as fast. A killed run counts: it may have done its work."""
    total = 3 * RATE + 5
    results = [proj.rated.delay(name, 0.01 if number % 9 or not dying else 0.5) for number in range(total)]
    killed = set()
    while dying and len(killed) < 2:
        wait_until(lambda: len(records(name, "start")) > 10 * len(killed), timeout=SOON, what="more runs")
        ended = {entry["token"] for entry in records(name, "end")}
        running = [entry for entry in records(name, "start") if entry["token"] not in ended]
        for entry in [entry for entry in running if entry["id"] not in killed][:1]:
            with suppress(ProcessLookupError):
                os.kill(entry["pid"], signal.SIGKILL)
            killed.add(entry["id"])
    for result in results:
        result.get(timeout=60, propagate=False)
    taken = sorted(entry["token"] / 1e6 for entry in records(name, "start"))
    assert len(taken) == total
    spans = [later - earlier for earlier, later in zip(taken, taken[RATE:], strict=False)]
    assert min(spans) >= PERIOD


@pytest.mark.slow
def test_a_fleet_whose_processes_are_killed_keeps_the_limit_and_loses_no_task(
    start_fleet, rabbit, backend, queue, name, records, most_at_once
):
    """Semantics 1, 6, 7 and 17: children and a whole worker die under load.

    With RabbitMQ, because kombu loses a message that a killed worker has just taken from Redis.
    """
    random.seed(name)
    killed = {}

    def kill_one():
        ended = {entry["token"] for entry in records(name, "end")}
        running = [entry for entry in records(name, "start") if entry["token"] not in ended]
        for entry in random.sample(running, min(1, len(running))):
            with suppress(ProcessLookupError):
                os.kill(entry["pid"], signal.SIGKILL)
                killed.setdefault(entry["pid"], time.time())

    with (
        Publisher("rabbitmq", rabbit.url, rabbit.port) as publisher,
        start_fleet(2, queues=[queue], concurrency=3, env={"RLOCK_TEST_BROKER": rabbit.url}) as workers,
    ):
        send = sender("tests.worker.proj.limited", publisher, backend)
        results = [send("limited_late", name, 0.1, queue=queue) for _ in range(60)]
        for round_ in range(8):
            wait_until(
                lambda round_=round_: len(records(name, "end")) >= 4 * round_, timeout=60, what="more runs"
            )
            kill_one()
        kill(workers[0])
        wait_until(
            lambda: {entry["id"] for entry in records(name, "end")} == {result.id for result in results},
            timeout=90,
            what="all tasks to end",
        )
    assert killed
    assert most_at_once(name, killed) <= LARGE
    slots = Counter(entry["slot"] for entry in records(name, "start"))
    assert set(slots) == set(range(LARGE))


def test_lock_of_names_all_holders(proj, name, records):
    results = [proj.limited.delay(name, until=f"{name}-1") for _ in range(3)]
    wait_until(lambda: len(records(name, "start")) == LIMIT, timeout=SOON, what="two runs")
    status = proj.limited.lock_of(name)
    assert [(holder.slot, holder.limit, holder.state) for holder in status.holders] == [
        (0, LIMIT, "held"),
        (1, LIMIT, "held"),
    ]
    assert {holder.task_id for holder in status.holders} < {result.id for result in results}
