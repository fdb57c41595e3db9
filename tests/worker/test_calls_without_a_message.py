"""Calls without a message: direct, eager, and the items of a map."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import pytest
from celery import Celery, _state, chain, chord, group

from celery_rlock import LockBusy, LockedTask, LockNotHeld, LockUnavailable, RLock, current_lock
from tests.support import outages
from tests.support.fixtures import holder
from tests.support.outages import unreachable_url
from tests.support.processes import wait_until


@pytest.fixture
def app(server, monkeypatch):
    """An app that is the current one of this thread while the test runs."""
    app = Celery("direct", broker="memory://", backend="cache+memory://", set_as_current=False)
    monkeypatch.setattr(_state._tls, "current_app", app)
    app.conf.update(rlock_url=server.url, rlock_ttl=1, task_store_eager_result=True)
    return app


@pytest.fixture
def work(app):
    @app.task(base=LockedTask, bind=True, shared=False, lock_key="{key}")
    def work(self, key, value=None):
        assert self.lock is current_lock()
        assert self.lock.held
        return value if value is not None else self.request.id

    return app.tasks[work.name]


@pytest.fixture
def held(app):
    """The key `k`, held by another thread until the test ends."""
    ready, done = threading.Event(), threading.Event()

    def hold():
        app.set_current()
        with RLock("k"):
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert ready.wait(10)
    yield
    done.set()
    thread.join()


def test_a_direct_call_takes_the_lock_and_frees_it(work, client):
    assert work("k", 5) == 5
    assert not client.exists("rlock:{k}")
    assert current_lock() is None


def test_an_eager_call_keeps_its_own_request(work, client):
    result = work.apply(("k",))
    assert result.get() == result.id
    assert not client.exists("rlock:{k}")


@pytest.mark.parametrize("call", ["direct", "apply"])
def test_a_busy_call_waits_with_a_bound_and_then_raises(work, held, call):
    """Semantics 13: eager-safe, no recursion and no deadlock without a bound."""
    start = time.monotonic()
    with pytest.raises(LockBusy, match="'k' is held by"):
        work("k") if call == "direct" else work.apply(("k",), throw=True)
    assert 1 <= time.monotonic() - start < 10


def test_always_eager_waits_with_a_bound_too(app, work, held):
    """Semantics 13: `task_always_eager` with a busy lock is no RecursionError."""
    app.conf.task_always_eager = True
    result = work.delay("k")
    assert result.state == "FAILURE"
    assert isinstance(result.result, LockBusy)


def test_a_call_that_waits_gets_the_lock_when_it_is_freed(app, work):
    lock = RLock("k")
    lock.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(work("k", 1)))
    thread.start()
    time.sleep(0.2)
    lock.release()
    thread.join(10)
    assert got == [1]


def test_a_task_in_the_thread_that_holds_the_key_enters_again(app, work):
    """Semantics 2: outside of any task the thread is the execution."""
    with RLock("k"):
        assert work("k", 1) == 1
        assert work.apply(("k", 2)).get() == 2


def test_eager_canvas_runs_to_its_end(app, work):
    """Semantics 13: chain, group and chord, eagerly, on one key."""
    app.conf.task_always_eager = True
    assert chain(work.si("k", 1), work.si("k", 2))().get() == 2
    assert group(work.si("k", n) for n in range(3))().get() == [0, 1, 2]
    assert work.map(["k"]).apply().get()
    assert list(work.starmap([("k", 1), ("k", 2)]).apply().get()) == [1, 2]
    assert chord([work.si("k", 1)], work.si("k", 7))().get() == 7


@pytest.mark.parametrize("call", ["direct", "apply", "always eager"])
def test_a_server_that_is_away_is_told_soon_and_with_the_reason(app, call):
    """Semantics 13: it does not wait as long as it would for a busy lock, here an hour."""
    app.conf.update(rlock_url=unreachable_url(), task_always_eager=True, task_eager_propagates=True)

    @app.task(base=LockedTask, shared=False, lock_key="k", lock_ttl=3600)
    def work():
        return None

    calls = {"direct": work, "apply": work.apply, "always eager": work.delay}
    with pytest.raises(LockUnavailable, match=r"lock 'k' is unavailable: .*refused"):
        calls[call]()


def test_a_server_that_goes_away_while_a_call_waits_is_told_too(app, server, proxy):
    app.conf.update(rlock_url=proxy.url, rlock_ttl=3600)

    @app.task(base=LockedTask, shared=False, lock_key="k")
    def waiting():
        return None

    task, errors = app.tasks[waiting.name], []

    def call():
        app.set_current()
        with pytest.raises(LockUnavailable) as raised:
            task()
        errors.append(raised.value)

    with holder(server)("k"):
        thread = threading.Thread(target=call)
        thread.start()
        wait_until(lambda: any(b"SUBSCRIBE" in seen[0] for seen in proxy.seen), what="the call to wait")
        with outages.refused(proxy):
            thread.join(30)
    assert errors


def test_a_server_that_is_away_fails_at_once_if_asked_to(app):
    app.conf.rlock_url = unreachable_url()

    @app.task(base=LockedTask, shared=False, lock_unavailable="fail")
    def needing():
        return 1

    with pytest.raises(LockUnavailable):
        needing()


def test_switched_off_nothing_is_asked_of_any_server(app, work):
    app.conf.update(rlock_enabled=False, rlock_url="redis://nowhere.invalid/0")
    assert work("k", 3) == 3
    with RLock("k") as lock:
        lock.ensure()
        assert lock.depth == 1


def test_outside_of_a_run_there_is_no_lock(work):
    assert current_lock() is None
    with pytest.raises(LockNotHeld):
        work.lock  # noqa: B018


def test_threads_that_share_a_task_object_have_each_its_own_lock(app):
    """`self.lock` is the lock of this execution."""
    seen = {}
    together = threading.Barrier(2)

    @app.task(base=LockedTask, bind=True, shared=False, lock_key="{key}")
    def look(self, key):
        together.wait(10)
        seen[key] = self.lock.key

    threads = [threading.Thread(target=look, args=(key,)) for key in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": "a", "b": "b"}


def test_a_users_own_call_method_runs_inside_the_lock(app, client):
    """Semantics 21: also eagerly, and the run keeps the request of `apply`."""
    seen = []

    class Timed(LockedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            seen.append(bool(client.exists("rlock:{k}")))
            return super().__call__(*args, **kwargs)

    @app.task(base=Timed, bind=True, shared=False, lock_key="k")
    def work(self):
        seen.append(bool(client.exists("rlock:{k}")))
        return self.request.id

    result = work.apply()
    assert result.get() == result.id
    assert seen == [True, True]


def test_a_call_that_has_ended_leaves_nothing_in_memory(app):
    requests = []

    @app.task(base=LockedTask, bind=True, shared=False, lock_key="k")
    def work(self):
        requests.append(weakref.ref(self.request))

    work.apply()
    gc.collect()
    assert [request() for request in requests] == [None]


def test_extend_inside_a_task(app, client):
    @app.task(base=LockedTask, bind=True, shared=False, lock_key="k")
    def long(self):
        self.lock.extend(60)
        return client.pttl("rlock:{k}")

    assert long() > 50_000


def test_a_fork_inside_a_task_leaves_the_lock_to_its_parent(app, client):
    """Semantics 3: the child goes through the same `finally`, and frees nothing."""

    @app.task(base=LockedTask, shared=False, lock_key="k")
    def forking():
        child = os.fork()
        if child == 0:
            return "child"
        os.waitpid(child, 0)
        return client.exists("rlock:{k}")

    result = forking()
    if result == "child":
        os._exit(0)
    assert result == 1
