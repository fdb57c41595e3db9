"""Background threads that cannot start, and one execution in several threads."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextvars import copy_context

import pytest

from celery_rlock import ConfigurationError, LockedTask
from tests.attacks.attack import PATIENCE, in_thread, run_code, taken_by_another
from tests.support.processes import wait_until

DAY = 24 * 3600

NO_NEW_THREAD = """
import sys, threading, time
from contextlib import suppress
from celery import Celery
from celery_rlock import RLock, RLockError
app = Celery("threads", broker="memory://")
app.conf.rlock_url = sys.argv[1]
app.set_default()
number, what = int(sys.argv[2]), sys.argv[3]
start, lock, starts = threading.Thread.start, threading.Lock(), []

def refuse_once(self):
    if not self.name.startswith("mine"):
        with lock:
            starts.append(self.name)
            if len(starts) == number:
                raise RuntimeError("can't start new thread")
    start(self)

threading.Thread.start = refuse_once

def take(key):
    for _ in range(3):
        with suppress(RuntimeError, RLockError):
            if RLock(key, ttl=2).acquire(timeout=10):
                return
    raise AssertionError(f"{key} cannot be acquired")

def in_thread(work):
    thread = threading.Thread(target=work, name="mine", daemon=True)
    start(thread)
    return thread

take("a")
if what == "wait":  # a waiter starts the threads that listen
    waiter = in_thread(lambda: take("a"))
    time.sleep(0.5)
    RLock("a").release()
    waiter.join(30)
    assert not waiter.is_alive(), "the waiter hangs"
    take("c")
take("b")
time.sleep(5)
held = {key: RLock(key).owned() for key in (("b", "c") if what == "wait" else ("a", "b"))}
print("starts:", starts, "held:", held)
assert all(held.values()), f"starts: {starts}, held: {held}"
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["hold", "wait"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_thread_that_cannot_start_once_does_not_end_the_renewals(server, number, what):
    """Point 5: "can't start new thread" is a moment's trouble."""
    run_code(NO_NEW_THREAD, server.url, number, what, timeout=60)


HUGE_TTL = """
import sys, time
from contextlib import suppress
from celery import Celery
from celery_rlock import RLock, RLockError
app = Celery("threads", broker="memory://")
app.conf.rlock_url = sys.argv[1]
app.set_default()
with suppress(RLockError):
    RLock("huge", ttl=1e11).acquire()
time.sleep(0.3)
lock = RLock("small", ttl=1.5)
lock.acquire()
time.sleep(4)
assert lock.owned(), "the small lock was not renewed"
lock.release()
"""


@pytest.mark.slow
def test_a_huge_ttl_does_not_end_the_renewals_of_other_locks(server):
    """Point 5."""
    run_code(HUGE_TTL, server.url, timeout=60)


@pytest.mark.parametrize("ttl", [1e11, 31 * DAY])
def test_a_ttl_has_an_upper_bound(locks, ttl):
    """Point 5: thirty days."""
    with pytest.raises(ConfigurationError):
        locks(ttl=ttl)
    with locks(ttl=30 * DAY) as lock, pytest.raises(ConfigurationError):
        lock.extend(ttl)
    with pytest.raises(ConfigurationError):

        @locks.app.task(base=LockedTask, lock_key="k", lock_ttl=ttl, lazy=False, shared=False)
        def task():
            pass


@pytest.fixture
def hurried():
    """Threads take turns after a microsecond, so that they meet at every line."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def task(locks, hurried):
    """A locked task of key "task" that calls its argument inside the lock."""

    @locks.app.task(base=LockedTask, lock_key="task", lock_ttl=120, bind=True)
    def task(self, inside):
        return inside(self)

    return task


class Section:
    """Several threads of one execution enter the same lock, and leave it one after the other."""

    def __init__(self, lock, probe, count):
        self.lock, self.probe, self.count = lock, probe, count
        self.together = threading.Barrier(count)
        self.all_in = threading.Barrier(count)
        self.turn = threading.Condition()
        self.left = 0
        self.failures = []

    def run(self, number):
        self.together.wait(PATIENCE)
        if not self.lock.acquire(timeout=PATIENCE):
            self.failures.append(f"thread {number} waited in vain")
            return
        self.all_in.wait(PATIENCE)
        with self.turn:
            assert self.turn.wait_for(lambda: self.left == number, PATIENCE * 2)
        if taken_by_another(self.probe):
            self.failures.append(f"the lock was free when only {number} of {self.count} threads had left")
        try:
            self.lock.release()
        except Exception as error:
            self.failures.append(f"thread {number}: {error!r}")
        with self.turn:
            self.left += 1
            self.turn.notify_all()


@pytest.mark.parametrize("key", ["inner", "task"], ids=["another key", "the task's key"])
@pytest.mark.parametrize("eager", [False, True], ids=["called", "applied"])
def test_threads_with_the_tasks_context_share_its_locks(locks, task, key, eager):
    """Point 6: one lease for each key and execution, counted correctly."""

    def inside(self):
        failures = []
        for number in range(100):
            name = key if key == "task" else f"{key}-{number}"
            section = Section(locks(name, ttl=120), locks(name), 4)
            crowd = [
                threading.Thread(target=copy_context().run, args=(section.run, place), daemon=True)
                for place in range(4)
            ]
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join(PATIENCE * 3)
            failures += section.failures
            failures += [f"{thread.name} hangs" for thread in crowd if thread.is_alive()]
            if key == "task":
                if not self.lock.held or taken_by_another(locks(name)):
                    failures.append("the threads freed the task's own lock")
            elif not taken_by_another(locks(name)):
                failures.append("the lock is still taken after all threads left")
            if failures:
                break
        return failures

    assert (task.apply((inside,)).get() if eager else task(inside)) == []


def test_asyncio_to_thread_shares_the_tasks_locks(locks, task):
    """Point 6: the first coroutine that leaves does not free the lock under the second."""

    def inside(self):
        failures = []
        for number in range(100):
            name = f"key-{number}"
            section = Section(locks(name, ttl=120), locks(name), 3)

            async def main(section=section):
                await asyncio.gather(*(asyncio.to_thread(section.run, place) for place in range(3)))

            asyncio.run(main())
            failures += section.failures
            if not taken_by_another(locks(name)):
                failures.append("the lock is still taken after all threads left")
        return failures

    assert task(inside) == []


def test_threads_that_come_and_go_never_wait_for_their_own_execution(locks, task):
    """Point 6: a thread waited 29 s for a lock that was free."""

    def inside(self):
        waits, failures = [], []

        def work():
            for number in range(60):
                lock = locks(f"key-{number % 2}", ttl=120)
                start = time.monotonic()
                try:
                    assert lock.acquire(timeout=PATIENCE)
                    waits.append(time.monotonic() - start)
                    lock.release()
                except Exception as error:
                    failures.append(repr(error))

        crowd = [threading.Thread(target=copy_context().run, args=(work,), daemon=True) for _ in range(6)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(100)
        assert not any(thread.is_alive() for thread in crowd)
        return failures, waits

    failures, waits = task(inside)
    assert failures == []
    assert max(waits) < PATIENCE / 2
    assert all(taken_by_another(locks(f"key-{number}")) for number in range(2))


@pytest.mark.slow
def test_a_thread_that_ended_without_releasing_is_not_renewed_for_ever(locks):
    """Point 14: its lease ends, as that of a process that died."""
    lock = locks("left", ttl=1.5)
    assert in_thread(lock.acquire)
    wait_until(lambda: not lock.locked(), timeout=30, what="the end of the dead thread's lease")
    with locks("left", ttl=1.5) as mine:  # and a living thread's lock is renewed as before
        time.sleep(4)
        assert mine.owned()
