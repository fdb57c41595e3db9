"""`task.lock_keys` and `task.lock_of`: ask for a lock, and release it, from Python."""

from __future__ import annotations

import enum
import threading

import pytest
from celery.contrib.testing.worker import start_worker

from celery_rlock import ConfigurationError, LockedTask, RLock, settings
from celery_rlock.running.reschedule import CAN_BE_WOKEN
from celery_rlock.testing import busy, held
from tests.support.processes import wait_until


@pytest.fixture
def transfer(app):
    @app.task(base=LockedTask, shared=False, name="transfer", lock_key=["account:{to}", "account:{source}"])
    def transfer(source, to): ...

    return app.tasks["transfer"]


def test_the_keys_of_a_call_are_told_without_a_server(bare_app):
    @bare_app.task(base=LockedTask, bind=True, shared=False, lock_key=["b:{b}", "a:{a}"])
    def work(self, a, b=2): ...

    assert work.lock_keys(1) == work.lock_keys(a=1, b=2) == ("a:1", "b:2")


def test_the_keys_are_those_that_a_worker_makes_from_the_message(bare_app):
    class Color(str, enum.Enum):
        RED = "red"

    @bare_app.task(base=LockedTask, shared=False, lock_key="{value}")
    def work(value): ...

    assert work.lock_keys(Color.RED) == ("red",)
    assert work.lock_keys((1, 2)) == work.lock_keys([1, 2])


def test_what_no_message_can_carry_has_the_keys_of_a_direct_call(bare_app):
    @bare_app.task(base=LockedTask, shared=False, lock_key=lambda value: f"{value.imag}")
    def work(value): ...

    assert work.lock_keys(3j) == ("3.0",)


def test_arguments_that_do_not_fit_are_refused(charge):
    with pytest.raises(TypeError):
        charge.lock_keys(1, 2, 3)


def test_a_free_lock(charge):
    status = charge.lock_of(7)
    assert (status.state, status.keys, status.holders, status.waiters) == ("free", ("account:7",), (), ())
    assert status.release() is False


def test_a_held_lock_names_its_holder(charge):
    with held(charge, 7) as lock:
        status = charge.lock_of(7)
        (holder,) = status.holders
    assert status.state == holder.state == "held"
    assert (holder.key, holder.owner, holder.task, holder.token) == (
        "account:7",
        lock.owner,
        "charge",
        lock.token,
    )
    assert 0 < holder.lease_left <= 2
    assert "held by" in repr(status)


def test_a_published_task_has_queued_its_key(app):
    @app.task(base=LockedTask, shared=False, lock_from="publish")
    def unique(shop): ...

    result = unique.delay("books")
    status = unique.lock_of("books")
    assert (status.state, status.holders[0].task_id) == ("queued", result.id)
    assert status.release()
    assert unique.delay("books").id != result.id


def test_a_key_that_rests_can_be_released(app):
    @app.task(base=LockedTask, shared=False, lock_key="k", lock_hold_at_least=60)
    def work(): ...

    work()
    status = work.lock_of()
    assert status.state == "resting"
    assert status.release()
    assert work.lock_of().state == "free"


def test_a_release_wakes_the_first_waiter(app):
    app.set_default()

    @app.task(base=LockedTask, shared=False, name="next", lock_key="k", lock_wait=60)
    def following():
        return "ran"

    results = []
    thread = threading.Thread(target=lambda: results.append(following()))
    with busy("k"):
        thread.start()
        wait_until(lambda: following.lock_of().waiters, what="the call to wait")
        status = following.lock_of()
        assert [waiter.key for waiter in status.waiters] == ["k"]
        assert status.release()
        thread.join(20)
        assert results == ["ran"]


def test_a_holder_that_came_later_keeps_the_lock(charge):
    with busy("account:7"):
        seen = charge.lock_of(7)
    with busy("account:7"):
        assert seen.release() is False
        assert charge.lock_of(7).state == "held"


def test_a_later_ownership_of_the_same_owner_keeps_the_lock(app, charge):
    """Semantics 3: the release is fenced by the token, and not by the owner alone."""
    lock = RLock("account:7")
    with lock:
        seen = charge.lock_of(7)
    with lock:
        assert charge.lock_of(7).holders[0].owner == seen.holders[0].owner
        assert seen.release() is False
        assert lock.owned()


def test_several_keys_are_one_status(transfer):
    with busy("account:1") as owner:
        status = transfer.lock_of(1, 2)
        assert status.keys == ("account:1", "account:2")
        assert status.state == "held"
        assert [(holder.key, holder.owner) for holder in status.holders] == [("account:1", owner)]
        assert status.release()
    with busy("account:1", "account:2"):
        status = transfer.lock_of(1, 2)
        assert transfer.lock_of(source=2, to=9).release()
        assert status.release() is False  # one of the two was not there any more
        assert transfer.lock_of(1, 2).state == "free"


def test_a_foreign_redis_key_in_the_place_of_a_lock_is_an_error(app, charge):
    settings.redis_server(app).client.set("rlock:{account:7}", "something else")
    with pytest.raises(ConfigurationError, match="not a lock"):
        charge.lock_of(7)
    settings.redis_server(app).client.delete("rlock:{account:7}")


def test_every_lock_is_free_if_locking_is_switched_off(bare_app):
    bare_app.conf.rlock_enabled = False

    @bare_app.task(base=LockedTask, shared=False, lock_key="k")
    def work():
        return work.lock_of().state

    assert work() == "free"


@pytest.mark.skipif(not CAN_BE_WOKEN, reason="before Celery 5.7 a waiting task is not in line")
def test_a_task_in_a_worker_is_seen_with_its_id_and_its_waiters(app):
    go_on = threading.Event()

    @app.task(base=LockedTask, shared=False, name="slow", lock_key="k")
    def slow():
        go_on.wait(20)

    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        first = slow.delay()
        wait_until(lambda: slow.lock_of().state == "held", what="the first run")
        second = slow.delay()
        wait_until(lambda: slow.lock_of().waiters, what="the second to wait")
        status = slow.lock_of()
        go_on.set()
        second.get(timeout=20)
    assert [holder.task_id for holder in status.holders] == [first.id]
    assert [waiter.task_id for waiter in status.waiters] == [second.id]
