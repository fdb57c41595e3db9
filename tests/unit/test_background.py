"""Jobs in the background: what goes first, and what many of them cost."""

from __future__ import annotations

import threading
import time

import pytest

from celery_rlock.core import background as background_module
from celery_rlock.core.background import Background
from celery_rlock.errors import LockUnavailable
from tests.support.processes import wait_until

MANY = 10_000


@pytest.fixture
def background():
    return Background()


@pytest.fixture
def done(background):
    """The jobs that are done, in order. `add` adds a job by its name."""

    class Done(list):
        def add(self, name, *args, **options):
            background.add(name, lambda: self.append(name), *args, **options)

        def await_all(self, count):
            wait_until(lambda: len(self) == count, timeout=30, what=f"{count} jobs to be done")

    return Done()


@pytest.fixture
def pause(background):
    """A block in which the background thread is kept busy."""

    class Pause:
        def __enter__(self):
            self.over, began = threading.Event(), threading.Event()
            background.add("keep busy", lambda: (began.set(), self.over.wait(30)), server="another")
            assert began.wait(10)

        def __exit__(self, *_):
            self.over.set()

    return Pause()


def test_a_release_goes_before_everything_that_was_added_earlier(done, pause):
    """Semantics 6: a dead child's lock does not wait until thousands of redeliveries are announced."""
    with pause:
        for number in range(MANY):
            done.add(f"announce {number}", server="a")
        done.add("release", server="a", first=True)
        done.add("release elsewhere", server="b", first=True)
    done.await_all(MANY + 2)
    assert set(done[:2]) == {"release", "release elsewhere"}
    assert done[2:] == [f"announce {number}" for number in range(MANY)]


def test_a_release_overtakes_the_jobs_that_are_being_done(background, done):
    """A job is never interrupted, so at most one of the others goes before the release."""
    for number in range(200):
        background.add(f"announce {number}", lambda number=number: (time.sleep(0.005), done.append(number)))
    wait_until(lambda: done, what="the first job")
    before = len(done)
    done.add("release", first=True)
    done.await_all(201)
    assert done.index("release") - before <= 5


def test_jobs_that_wait_for_the_same_process_share_one_look_at_it(background, done):
    class ProcessEnd:
        looks, ended = 0, False

        def __call__(self):
            self.looks += 1
            return self.ended

    end = ProcessEnd()
    for number in range(MANY):
        done.add(number, end)
    done.add("another", server="a")
    done.await_all(1)
    end.looks = 0
    wait_until(lambda: end.looks >= 3, what="three looks")
    end.ended = True
    done.await_all(MANY + 1)
    assert end.looks < 1000, "each job looked by itself"


def test_the_time_of_a_job_does_not_grow_with_the_number_of_jobs(done, pause):
    def cpu_time(count):
        done.clear()
        with pause:
            for number in range(count):
                done.add(number, not_before=0.001)
        start = time.process_time()
        done.await_all(count)
        return time.process_time() - start

    cpu_time(100)
    few, many = cpu_time(MANY // 20), cpu_time(MANY)
    assert many < 20 * 10 * few, f"{few:.3f} s for {MANY // 20} jobs, {many:.3f} s for {MANY}"


def test_jobs_for_a_silent_server_pause_together_and_are_done_when_it_is_back(background, done):
    asked, silent = [], True

    def ask(number):
        asked.append(number)
        if silent:
            raise LockUnavailable("key", "silent")
        done.append(number)

    for number in range(MANY):
        background.add(f"ask {number}", lambda number=number: ask(number), server="silent")
    wait_until(lambda: asked, what="the first question")
    done.add("for another server", server="healthy")
    done.await_all(1)
    wait_until(lambda: len(asked) >= 3, what="the third question")
    assert len(asked) < 10, "each job asked the silent server"
    silent = False
    done.await_all(MANY + 1)


def test_one_job_that_cannot_be_done_does_not_keep_back_the_others_of_its_server(background, done):
    """One slot of a Cluster may be away while the others answer."""

    def fail():
        raise LockUnavailable("key", "its slot is not covered")

    background.add("fail", fail, server="cluster", first=True)
    for number in range(100):
        done.add(number, server="cluster", first=True)
    done.await_all(100)


def test_jobs_whose_time_is_over_are_dropped_together(background, done, caplog):
    asked = []

    def fail():
        asked.append(1)
        raise LockUnavailable("key", "silent")

    for number in range(1000):
        background.add(f"ask {number}", fail, server="silent", give_up=0.001)
    wait_until(lambda: len(caplog.records) >= 1000, timeout=30, what="all jobs to be given up")
    assert len(asked) < 10


def test_a_job_for_later_is_done_later(done):
    from celery_rlock.server.clock import now  # noqa: PLC0415

    done.add("later", not_before=now() + 0.3)
    done.add("now")
    done.await_all(2)
    assert done == ["now", "later"]


def test_a_job_that_fails_does_not_end_the_thread(background, done):
    background.add("fail", lambda: 1 / 0)
    done.add("next")
    done.await_all(1)


def test_flush_waits_for_what_could_be_done_now(background, done):
    background.add("slow", lambda: (time.sleep(0.2), done.append("slow")))
    background.add("never", lambda: done.append("never"), lambda: False)
    background.flush()
    assert done == ["slow"]


def test_servers_take_turns(done, pause):
    """The server that has waited longest is next."""
    with pause:
        for number in range(3):
            done.add(f"a{number}", server="a")
        for number in range(3):
            done.add(f"b{number}", server="b")
    done.await_all(6)
    assert [name[0] for name in done] in (list("ababab"), list("bababa"))


def test_a_job_that_failed_once_is_done_once(background, done):
    tries = []

    def fail_once():
        tries.append(1)
        if len(tries) == 1:
            raise LockUnavailable("key", "silent")
        done.append("done")

    background.add("fail once", fail_once, server="a")
    done.await_all(1)
    done.add("another", server="a")
    done.await_all(2)
    assert len(tries) == 2


def test_a_thread_that_has_nothing_to_do_logs_no_error(done, caplog):
    done.add("first")
    done.await_all(1)
    time.sleep(0.1)
    assert caplog.records == []


def test_flush_waits_for_the_job_that_is_being_done(background, done):
    began = threading.Event()
    background.add("slow", lambda: (began.set(), time.sleep(0.3), done.append("slow")))
    assert began.wait(10)
    time.sleep(0.05)  # it is not among the jobs that were only added any more
    background.flush()
    assert done == ["slow"]


def test_flush_without_jobs_does_not_wait(background, done, monkeypatch):
    monkeypatch.setattr(background_module, "_TIME_TO_LEAVE", 40.0)
    start = time.monotonic()
    done.add("first")
    background.add("never", lambda: done.append("never"), lambda: False)
    done.await_all(1)
    background.flush()
    assert time.monotonic() - start < 20


def test_flush_starts_the_thread_that_could_not_start(background, done, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        done.add("first")
    background.flush()
    assert done == ["first"]
