"""`celery_rlock.testing`: each helper, with locks in memory and in an embedded server."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from celery_rlock import (
    ConfigurationError,
    LockBusy,
    LockedTask,
    LockLost,
    LockNotHeld,
    LockUnavailable,
    RLock,
    current_lock,
)
from celery_rlock.core.execution import inherited_execution
from celery_rlock.server.clock import now
from celery_rlock.signals import lock_busy, lock_lost
from celery_rlock.testing import busy, held, locks_at, lost, memory_locks, unavailable
from tests.support.processes import wait_until


def test_a_busy_key_is_held_by_another_owner_until_the_block_ends(app, charge):
    with busy("account:7") as owner:
        with pytest.raises(LockBusy, match="account:7") as raised:
            charge.apply((7,), lock_wait=0, lock_busy="fail", throw=True)
        assert raised.value.holder == owner
        assert charge(8) == (1, "account:8")
    assert charge(7) == (1, "account:7")


def test_a_direct_call_of_a_busy_task_fails_and_says_so(app, charge):
    actions = []
    lock_busy.connect(note := lambda action, **_: actions.append(action), weak=False)
    try:
        with busy("account:7"), pytest.raises(LockBusy):
            charge.apply((7,), lock_ttl=0.1, throw=True)
    finally:
        lock_busy.disconnect(note)
    assert actions == ["wait", "fail"]


def test_a_direct_call_leaves_no_execution_behind(charge):
    """A thread that gets a copy of the context is another owner."""
    charge(7)
    assert inherited_execution() is None


def test_a_busy_key_stays_busy_for_longer_than_its_lease(app, charge):
    app.conf.rlock_ttl = 0.5
    with busy("account:7"):
        time.sleep(1)
        assert charge.lock_of(7).state == "held"


def test_several_keys_are_busy_at_once_or_none(app, charge):
    with busy("account:1", "account:2"):
        assert [charge.lock_of(n).state for n in (1, 2, 3)] == ["held", "held", "free"]
        with pytest.raises(LockBusy), busy("account:3", "account:2"):
            pass
        assert charge.lock_of(3).state == "free"


def test_a_busy_key_may_be_released_inside_the_block(app, charge):
    with busy("account:7"):
        assert charge.lock_of(7).release()
        assert charge(7) == (1, "account:7")


def test_a_call_waits_for_the_end_of_the_block_and_is_woken(app, charge):
    app.conf.rlock_ttl = 60
    results = []
    thread = threading.Thread(target=lambda: results.append(charge.apply((7,), lock_wait=60).get()))
    with busy("account:7"):
        thread.start()
        wait_until(lambda: charge.lock_of(7).waiters, what="the call to wait")
    thread.join(20)
    assert results == [(1, "account:7")]


def test_run_has_its_lock_while_the_test_holds_it(charge):
    with pytest.raises(LockNotHeld):
        charge.run(7)
    with held(charge, 7, amount=5) as lock:
        assert charge.run(7, amount=5) == (5, "account:7")
        assert lock is charge.lock
        assert charge.lock_of(7).holders[0].task == "charge"
    assert charge.lock_of(7).state == "free"
    assert current_lock() is None


def test_the_lock_of_a_busy_key_cannot_be_held(charge):
    with busy("account:7"), pytest.raises(LockBusy, match="account:7"), held(charge, 7):
        pass


def test_only_a_locked_task_can_be_held(app):
    @app.task(shared=False)
    def plain(): ...

    with pytest.raises(ConfigurationError, match="base=LockedTask"), held(plain):
        pass


def test_a_run_with_warnings_only_goes_on_after_a_loss(app, charge):
    seen = []
    lock_lost.connect(lambda error, **_: seen.append(error.key), weak=False, dispatch_uid="test")

    @app.task(base=LockedTask, bind=True, shared=False, lock_key="k")
    def work(self):
        lost()
        assert self.lock.lost
        with pytest.raises(LockLost):
            self.lock.ensure()
        return "finished"

    try:
        assert work() == "finished"
    finally:
        lock_lost.disconnect(dispatch_uid="test")
    assert seen == ["k"]


def test_a_run_with_abort_ends_where_it_loses_the_lock(app):
    reached = []

    @app.task(base=LockedTask, shared=False, lock_key="k", lock_lost="abort")
    def work():
        lost()
        time.sleep(1)
        reached.append(True)

    with pytest.raises(LockLost, match="testing"):
        work()
    assert not reached


def test_the_test_takes_the_lock_away_from_a_run_in_another_thread(app):
    started, ended = threading.Event(), []

    @app.task(base=LockedTask, shared=False, name="loop", lock_key="k", lock_lost="abort")
    def loop():
        started.set()
        while True:
            time.sleep(0.01)

    task = app.tasks["loop"]

    def run():
        try:
            task()
        except LockLost as error:
            ended.append(error.key)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(10)
    lost(task)
    assert task.lock_of().state == "free"
    thread.join(20)
    assert ended == ["k"]


def test_a_held_lock_can_be_lost_too(charge):
    with held(charge, 7):
        lost()
        with pytest.raises(LockLost):
            charge.run(7)


def test_a_lock_past_its_local_deadline_is_lost_before_any_thread_has_noticed(charge):
    """Semantics 7: the local deadline decides."""
    with held(charge, 7) as lock:
        assert (lock.held, lock.lost) == (True, False)
        lock._lock.leases[0].deadline = now() - 1
        assert (lock.held, lock.lost) == (False, True)
        with pytest.raises(LockLost):
            lock.extend(5)


def test_without_a_run_there_is_nothing_to_lose(charge):
    with pytest.raises(LockNotHeld):
        lost()
    with pytest.raises(LockNotHeld, match="charge"):
        lost(charge)


def test_a_server_that_is_unavailable_is_back_after_the_block(app, charge):
    with unavailable():
        with pytest.raises(LockUnavailable, match=r"testing\.unavailable"):
            charge(7)
        with pytest.raises(LockUnavailable):
            RLock("other").acquire()
        with pytest.raises(LockUnavailable):
            charge.lock_of(7)
    assert charge(7) == (1, "account:7")


def test_a_task_may_run_without_the_lock_while_the_server_is_unavailable(app):
    @app.task(base=LockedTask, bind=True, shared=False, lock_unavailable="run")
    def work(self):
        assert (self.lock.held, self.lock.lost) == (False, False)
        with pytest.raises(LockLost, match="does not hold it"):
            self.lock.extend(5)
        return "ran"

    with unavailable():
        assert work() == "ran"


def test_a_call_that_waits_is_told_that_the_server_is_unavailable(app, charge):
    errors = []

    def call():
        with pytest.raises(LockUnavailable) as raised:
            charge.apply((7,), lock_wait=60, throw=True)
        errors.append(raised.value)

    thread = threading.Thread(target=call)
    with busy("account:7"):
        thread.start()
        wait_until(lambda: charge.lock_of(7).waiters, what="the call to wait")
        with unavailable():
            thread.join(20)
    assert errors


def test_the_server_becomes_unavailable_while_other_threads_talk_to_it(app):
    stopping = threading.Event()

    def talk(key):
        while not stopping.is_set():
            # To close a connection that a thread just reads from may raise any error there.
            with suppress(Exception), RLock(key):
                pass

    threads = [threading.Thread(target=talk, args=(f"key-{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            time.sleep(0.01)
            with unavailable(), pytest.raises(LockUnavailable):
                RLock("k").acquire()
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def test_the_settings_are_as_before_after_a_block(bare_app):
    bare_app.conf.update(rlock_url="redis://nowhere.invalid/0", rlock_enabled=False)
    with memory_locks(), RLock("k") as lock:
        assert lock.token > 0
    assert bare_app.conf.rlock_url == "redis://nowhere.invalid/0"
    with RLock("k") as lock:
        assert lock.token == 0


def test_each_block_with_memory_begins_empty(bare_app):
    with memory_locks() as first:
        RLock("k").acquire()
    with memory_locks() as second:
        assert not RLock("k").locked()
    assert first != second


def test_a_lock_that_a_test_left_behind_is_released_after_the_block(bare_app):
    with memory_locks() as url:
        RLock("k").acquire()
    with locks_at(url):
        assert not RLock("k").locked()
        with RLock("k") as lock:
            assert lock.depth == 1


def test_helpers_refuse_an_app_whose_locks_are_switched_off(bare_app):
    bare_app.conf.rlock_enabled = False
    for helper in (lambda: busy("k"), unavailable):
        with pytest.raises(ConfigurationError, match="rlock_enabled"), helper():
            pass


def test_a_switched_off_lock_can_be_held(bare_app):
    bare_app.conf.rlock_enabled = False

    @bare_app.task(base=LockedTask, bind=True, shared=False)
    def work(self):
        self.lock.ensure()
        return self.lock.token

    with held(work):
        assert work.run() == 0
