"""`lock_pending`: a call that is made during a run is queued behind it, and only one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery, chord, states

from celery_rlock import DuplicateTask, LockBusy, LockedTask, LockUnavailable, settings
from celery_rlock.server.script import Script
from tests.support.fleet import redelivered_after
from tests.support.outages import unreachable_url
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.worker.awaiting import SOON, await_log, await_state, kill_child, lock, revoke


@pytest.fixture(autouse=True)
def tell_it(tell, name):
    """Ends the runs that wait until they are told."""
    yield
    tell(name)


@pytest.fixture
def await_none(pending):
    """Returns when no call of a key is pending."""

    def wait(key, timeout=SOON):
        wait_until(lambda: not pending(key), timeout=timeout, what=f"no pending call of {key}")

    return wait


def test_a_second_queued_call_is_a_duplicate_of_the_first(proj, name, queue, messages, pending, holder):
    first = proj.rebuild.apply_async((name,), queue=queue)
    second = proj.rebuild.apply_async((name,), queue=queue)
    assert first.id == second.id
    assert [message["headers"]["id"] for message in messages(queue)] == [first.id]
    assert (pending(name), holder(name)) == ([first.id], None)


def test_of_many_publishers_at_once_one_gets_through(proj, name, queue, messages):
    with ThreadPoolExecutor(10) as threads:
        results = list(threads.map(lambda _: proj.rebuild.apply_async((name,), queue=queue), range(40)))
    assert len({result.id for result in results}) == len(messages(queue)) == 1


def test_duplicate_task_names_the_call_that_runs_next(proj, name, queue):
    first = proj.rebuild_twice.apply_async((name,), queue=queue)
    assert proj.rebuild_twice.apply_async((name,), queue=queue).id != first.id
    with pytest.raises(DuplicateTask) as error:
        proj.rebuild_twice.apply_async((name,), queue=queue)
    assert (error.value.key, error.value.task_id) == (name, first.id)
    assert error.value.holder.endswith(f"/queued:{first.id}")


def test_a_call_during_a_run_is_queued_and_a_second_one_is_its_duplicate(
    proj, fleet, name, await_start, tell, pending, overlaps, starts
):
    """Semantics 18."""
    first = proj.rebuild.delay(name, until_told=True)
    await_start(name)
    assert pending(name) == []
    second, third = proj.rebuild.delay(name), proj.rebuild.delay(name)
    assert second.id == third.id != first.id
    assert pending(name) == [second.id]
    tell(name)
    assert second.get(timeout=SOON)["id"] == second.id
    assert (overlaps(name), len(starts(name)), pending(name)) == (0, 2, [])


def test_a_call_that_a_run_makes_of_itself_runs_after_it(proj, fleet, name, records, overlaps):
    proj.rebuild_itself.delay(name, 3).get(timeout=SOON)
    wait_until(lambda: len(records(name, "end")) == 4, timeout=SOON, what="all runs")
    assert overlaps(name) == 0


class TestThePlaceIsGivenUp:
    """A place that stayed would make later calls believe that a run is to come."""

    pytestmark = pytest.mark.usefixtures("fleet")

    def test_when_the_task_expires(self, proj, name, await_none):
        result = proj.rebuild.apply_async((name,), countdown=1.5, expires=0.5)
        await_state(result, states.REVOKED)
        await_none(name)

    def test_when_the_task_is_revoked_long_before_its_eta(self, proj, name, fleet, await_none):
        result = proj.rebuild.apply_async((name,), countdown=600)
        await_log(fleet, f"[{result.id}] received")
        revoke(proj.app, fleet, result)
        await_none(name)
        assert proj.rebuild.delay(name).get(timeout=SOON)["id"] != result.id

    def test_when_the_call_waits_for_the_lock_and_is_revoked(
        self, proj, name, fleet, hold, waiters, await_none
    ):
        with hold(name):
            result = proj.rebuild.delay(name)
            waiters.await_count(name, 1)
            revoke(proj.app, fleet, result)
            await_none(name)

    def test_when_it_cannot_be_published(self, proj, name, queue, pending):
        with proj.app.connection_for_write(url=unreachable_url()) as connection:
            producer = proj.app.amqp.Producer(connection, auto_declare=False)
            with pytest.raises(Exception, match="refused"):
                proj.rebuild.apply_async((name,), queue=queue, producer=producer, retry=False)
        assert pending(name) == []

    def test_when_the_call_may_not_wait_for_the_lock(self, proj, name, hold, await_none):
        """`lock_busy` is a callable that the user wrote."""
        with hold(name):
            with pytest.raises(LockBusy):
                proj.rebuild_or_fail.delay(name).get(timeout=SOON)
            await_none(name)

    def test_when_the_child_of_the_run_is_killed(self, proj, fleet, name, await_start, await_free, pending):
        pid = (proj.rebuild.delay(name, 60), await_start(name))[1]["pid"]
        second = proj.rebuild.delay(name)
        assert pending(name) == [second.id]
        kill_child(proj.app, fleet, pid)
        assert second.get(timeout=SOON)["id"] == second.id
        assert pending(name) == []

    def test_when_it_was_purged_after_lock_queue_ttl(self, proj, name, queue, await_none, messages):
        first = proj.rebuild.apply_async((name,), queue=queue, lock_queue_ttl=1)
        with proj.app.connection_for_write() as connection:
            assert connection.default_channel.queue_purge(queue) == 1
        await_none(name)
        assert proj.rebuild.apply_async((name,), queue=queue).id != first.id
        assert len(messages(queue)) == 1


def test_a_retry_takes_the_place_that_is_free(proj, fleet, name, records, pending):
    first = proj.rebuild.delay(name, retry=2)
    wait_until(lambda: len(records(name, "end")) == 1 and pending(name), timeout=SOON, what="the retry")
    assert proj.rebuild.delay(name).id == first.id
    assert first.get(timeout=SOON)["retries"] == 1
    assert pending(name) == []


def test_a_retry_is_one_more_queued_message_if_there_is_no_place(
    proj, fleet, name, await_start, tell, records, overlaps
):
    first = proj.rebuild.delay(name, until_told=True, retry=0.5)
    await_start(name)
    second = proj.rebuild.delay(name)
    tell(name)
    assert (second.get(timeout=SOON)["id"], first.get(timeout=SOON)["retries"]) == (second.id, 1)
    assert overlaps(name) == 0


def test_a_member_of_a_canvas_is_never_dropped(proj, name, queue, messages, pending):
    first = proj.rebuild.apply_async((name,), queue=queue)
    chord([proj.rebuild.si(name).set(queue=queue)] * 2, proj.other.si(f"{name}-body")).apply_async()
    assert len(messages(queue)) == 3
    assert pending(name) == [first.id]


def test_several_keys_have_a_place_each_or_none(proj, name, queue, messages, pending):
    both = lambda other: proj.rebuild_both.apply_async((name, other), queue=queue)  # noqa: E731
    first, again = both(f"{name}-b"), both(f"{name}-b")
    assert first.id == again.id
    other = both(f"{name}-c")
    assert (pending(name), pending(f"{name}-b"), pending(f"{name}-c")) == ([first.id], [first.id], [])
    assert [message["headers"]["id"] for message in messages(queue)] == [other.id, first.id]


def test_a_call_waits_while_another_is_being_published_and_that_may_fail(proj, name, queue, messages, locks):
    """Semantics 18: it must not rely on a call that is not queued yet."""
    reserved = f"{name}-other"
    now = time.time()
    record = f"{(now + 1) * 1e6:.0f} {now * 1e6 + 1e9:.0f} {now * 1e6:.0f} 0 0 a 1@h/b\n{proj.rebuild.name}"
    locks.hset(f"{lock(name)}:pending", reserved, record)
    locks.expire(f"{lock(name)}:pending", 60)
    result = proj.rebuild.apply_async((name,), queue=queue)
    assert time.time() > now + 0.9
    assert [message["headers"]["id"] for message in messages(queue)] == [result.id] != [reserved]


def test_a_run_does_not_begin_while_its_place_is_not_surely_given_up(redis_for_locks, name):
    """Semantics 18: Redis takes the lock, and does not answer when the place is to be given up."""
    unqueue = Script.load("unqueue")
    with Proxy(redis_for_locks.port) as proxy:
        app = Celery("pending", set_as_current=False)
        app.conf.rlock_url = proxy.url + "?socket_timeout=0.5"
        runs = []

        @app.task(base=LockedTask, shared=False, lock_key="{name}", lock_from="publish", lock_pending=1)
        def rebuild(name):
            runs.append(name)

        with pytest.raises(LockUnavailable):
            proxy.drop_request(lambda command: unqueue.sha.encode() in command, times=2)
            rebuild.apply((name,), throw=True)
        assert runs == []
        wait_until(lambda: rebuild.lock_of(name).state == "free", what="the lock to be free")
        rebuild.apply((name,), throw=True)
        assert runs == [name]


@pytest.mark.parametrize("kind", ["child", "worker"])
def test_with_acks_late_a_pending_call_survives_a_kill(
    proj, name, queue, start_fleet, kind, records, await_start, overlaps
):
    """Semantics 7 and 18."""
    conf = redelivered_after(2)
    with start_fleet(1, queues=[queue], conf=conf, concurrency=2) as [worker]:
        proj.rebuild_late.apply_async((name, 3), queue=queue)
        pid = await_start(name)["pid"]
        second = proj.rebuild_late.apply_async((name,), queue=queue)
        if kind == "worker":
            worker.kill()
        else:
            kill_child(proj.app, [worker], pid)
        made = time.time()
        with start_fleet(1, queues=[queue], conf=conf):
            result = second.get(timeout=60)
    assert result["id"] == second.id
    assert any(entry["at"] > made for entry in records(name, "start"))


def test_when_redis_is_away_the_call_is_published_without_a_place(proj, name, queue, messages, monkeypatch):
    settings.forget_server(proj.app)
    monkeypatch.setitem(proj.app.conf, "rlock_url", unreachable_url())
    try:
        proj.rebuild.apply_async((name,), queue=queue)
        with pytest.raises(LockUnavailable):
            proj.rebuild.apply_async((name,), queue=queue, lock_unavailable="fail")
    finally:
        settings.forget_server(proj.app)
    assert len(messages(queue)) == 1
