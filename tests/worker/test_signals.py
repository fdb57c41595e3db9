"""Signals tell what happens to a task's lock. A receiver that raises does not disturb the task."""

from __future__ import annotations

import threading

import pytest
from celery import Celery

from celery_rlock import DuplicateTask, LockBusy, LockedTask, LockUnavailable, RLock, signals
from tests.support.outages import unreachable_url
from tests.support.processes import wait_until


@pytest.fixture
def app(server):
    app = Celery("signals", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(rlock_url=server.url)
    return app


@pytest.fixture
def heard():
    """Everything that is sent while the test runs; each receiver fails after it has noted."""
    heard = []
    named = {name: getattr(signals, name) for name in dir(signals) if name.startswith("lock_")}

    def listener(name):
        def receive(sender, **fields):
            heard.append((name, sender.name.rpartition(".")[2], fields))
            raise RuntimeError("a receiver's own fault")

        return receive

    receivers = {name: listener(name) for name in named}
    for name, signal in named.items():
        signal.connect(receivers[name], weak=False)
    yield heard
    for name, signal in named.items():
        signal.disconnect(receivers[name])


def names(heard):
    return [name for name, *_ in heard]


def test_a_run_sends_acquired_and_released(app, heard):
    @app.task(base=LockedTask, shared=False, lock_key="k")
    def work():
        return 5

    assert work.apply().get() == 5
    assert names(heard) == ["lock_acquired", "lock_released"]
    assert [fields["lock"].key for *_, fields in heard] == ["k", "k"]


def test_a_failing_run_sends_released_once(app, heard):
    @app.task(base=LockedTask, shared=False, lock_key="k", lock_until="postrun")
    def work():
        return 1 / 0

    assert work.apply().state == "FAILURE"
    assert names(heard) == ["lock_acquired", "lock_released"]


def test_busy_names_the_key_and_the_policy(app, heard, server):
    @app.task(base=LockedTask, shared=False, lock_key="k", lock_busy="fail")
    def work():
        return 5

    done = threading.Event()
    holder = threading.Thread(target=_hold, args=(server, "k", done))
    holder.start()
    wait_until(lambda: server.client().exists("rlock:{k}"), what="the holder")
    with pytest.raises(LockBusy):
        work()
    done.set()
    holder.join()
    [(name, _, fields)] = heard
    assert (name, fields["action"], fields["error"].key) == ("lock_busy", "fail", "k")


def _hold(server, key, done):
    with RLock(key, client=server.client()):
        done.wait(20)


@pytest.mark.parametrize("action", ["fail", "run"])
def test_unavailable_names_the_policy(app, heard, action):
    app.conf.rlock_url = unreachable_url()

    @app.task(base=LockedTask, shared=False, lock_unavailable=action)
    def work():
        return 5

    if action == "fail":
        with pytest.raises(LockUnavailable):
            work()
    else:
        assert work() == 5
    told = [(name, fields["action"]) for name, _, fields in heard if "action" in fields]
    assert told == [("lock_unavailable", action)]


def test_lost_is_told_while_the_run_goes_on(app, heard, client):
    """Semantics 8: signal, log and flag."""

    @app.task(base=LockedTask, bind=True, shared=False, lock_key="k", lock_ttl=0.6)
    def work(self):
        client.delete("rlock:{k}")
        wait_until(lambda: self.lock.lost, what="the loss")
        wait_until(lambda: "lock_lost" in names(heard), what="the signal")
        return self.lock.held

    assert work() is False
    fields = {name: fields for name, _, fields in heard}["lock_lost"]
    assert fields["error"].key == fields["lock"].key == "k"


@pytest.mark.parametrize("action", ["existing", "raise"])
def test_a_call_that_is_not_published_sends_duplicate(app, heard, action):
    @app.task(base=LockedTask, shared=False, lock_key="k", lock_from="publish", lock_duplicate=action)
    def work():
        return 5

    first = work.delay()
    if action == "raise":
        with pytest.raises(DuplicateTask):
            work.delay()
    else:
        assert work.delay().id == first.id
    [(name, sender, fields)] = heard
    assert (name, sender, fields["action"]) == ("lock_duplicate", "work", action)
    assert (fields["error"].key, fields["error"].task_id) == ("k", first.id)
