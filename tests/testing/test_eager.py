"""`task_always_eager`: a unique task is as unique as it is with a broker."""

from __future__ import annotations

import threading

import pytest
from celery.exceptions import Retry

from celery_rlock import DuplicateTask, LockedTask, RLock
from celery_rlock.testing import busy


@pytest.fixture(autouse=True)
def eager(app):
    app.conf.update(task_always_eager=True, task_store_eager_result=True, task_eager_propagates=True)
    app.set_default()


def test_a_unique_task_that_calls_itself_is_a_duplicate(app):
    """Semantics 13: eager-safe. Without the rule it would call itself for ever."""

    @app.task(base=LockedTask, bind=True, shared=False, name="again", lock_from="publish", lock_key="k")
    def again(self):
        return self.request.id, again.delay().id

    task_id, of_the_call = again.delay().get()
    assert of_the_call == task_id
    assert again.lock_of().state == "free"


def test_a_duplicate_is_refused_if_the_task_says_so(app):
    @app.task(base=LockedTask, shared=False, lock_from="publish", lock_key="k", lock_duplicate="raise")
    def again():
        with pytest.raises(DuplicateTask):
            again.delay()
        return "ran once"

    assert again.delay().get() == "ran once"


def test_a_call_beside_a_run_in_another_thread_is_a_duplicate(app):
    started, go_on, runs = threading.Event(), threading.Event(), []

    @app.task(base=LockedTask, bind=True, shared=False, name="slow", lock_from="publish", lock_key="k")
    def slow(self):
        runs.append(self.request.id)
        started.set()
        assert go_on.wait(20)

    thread = threading.Thread(target=slow.delay)
    thread.start()
    assert started.wait(10)
    try:
        assert slow.delay().id == runs[0]
    finally:
        go_on.set()
        thread.join(20)
    assert len(runs) == 1


def test_calls_one_after_the_other_all_run(app):
    runs = []

    @app.task(base=LockedTask, bind=True, shared=False, lock_from="publish", lock_key="k")
    def unique(self):
        runs.append(self.lock.owner.rpartition(":")[2] == self.request.id)

    for _ in range(2):
        unique.delay().get()
    assert runs == [True, True]
    assert unique.lock_of().state == "free"


def test_another_holder_of_the_key_is_waited_for(app):
    @app.task(base=LockedTask, shared=False, lock_from="publish", lock_key="k", lock_wait=0, lock_ttl=60)
    def unique():
        return "ran"

    results = []
    thread = threading.Thread(target=lambda: results.append(unique.delay().get()))
    with busy("k"):
        thread.start()
        thread.join(0.3)
        assert not results
    thread.join(20)
    assert results == ["ran"]


def test_a_run_enters_what_the_code_around_it_holds(app):
    """Semantics 2: an eager run inside a task, or inside a thread that has the lock, re-enters it."""

    @app.task(base=LockedTask, bind=True, shared=False, lock_from="publish", lock_key="inner")
    def inner(self):
        with RLock("outer"), RLock("inner") as lock:
            return lock.depth

    @app.task(base=LockedTask, shared=False, lock_key="outer")
    def outer():
        return inner.delay().get()

    assert outer() == 2
    with RLock("inner"):
        assert inner.delay().get() == 3
    assert [inner.lock_of().state, outer.lock_of().state] == ["free", "free"]


@pytest.mark.parametrize("propagates", [False, True])
def test_a_retry_keeps_the_key_and_frees_it_in_the_end(app, propagates):
    """With `task_eager_propagates`, Celery raises Retry and does not run the task again."""
    app.conf.task_eager_propagates = propagates

    @app.task(base=LockedTask, bind=True, shared=False, lock_from="publish", lock_key="k", max_retries=5)
    def twice(self):
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return self.request.retries, self.lock.keys

    if propagates:
        with pytest.raises(Retry):
            twice.delay()
    else:
        assert twice.delay().get() == (2, ("k",))
    assert twice.lock_of().state == "free"


@pytest.mark.parametrize("until", ["start", "return", "postrun"])
def test_nothing_is_left_after_a_failure(app, until):
    @app.task(base=LockedTask, shared=False, lock_from="publish", lock_key="k", lock_until=until)
    def failing():
        raise ValueError

    with pytest.raises(ValueError):
        failing.delay()
    assert failing.lock_of().state == "free"


def test_nothing_is_left_of_a_task_that_never_ran(app):
    class Picky(LockedTask):
        abstract = True

        def before_start(self, *_):
            raise ValueError

    @app.task(base=Picky, shared=False, lock_from="publish", lock_key="k")
    def never(): ...

    with pytest.raises(ValueError):
        never.delay()
    assert never.lock_of().state == "free"
