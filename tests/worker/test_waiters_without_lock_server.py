"""What happens to the locks' server while tasks wait, and that waking works again afterwards."""

from __future__ import annotations

import time

import pytest

from celery_rlock import LockBusy
from celery_rlock.core.script import Script
from tests.conftest import DEFAULT_KIND
from tests.support.faults import named
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.waking.fleet import SOON, Waiters, holder

QUEUE = "lock-server"
WAITERS = 3
#: Were their turns not passed on, each of them would cost the second that a woken waiter may take.
MANY = 30


@pytest.fixture(scope="module")
def own_server():
    """Apart from the broker, and for these tests only: it is stopped and cut off."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def way(own_server):
    """The workers' only way to it."""
    with Proxy(own_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module", autouse=True)
def fleet(start_fleet, way):
    with start_fleet(2, concurrency=2, lock=way.url, queues=[QUEUE]) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def waiters(own_server):
    return Waiters(own_server)


@pytest.fixture(scope="module")
def hold(own_server):
    return holder(own_server)


@pytest.fixture
def wait_for(send, waiters):
    """Has tasks wait for a key."""

    def wait(name, how_many=WAITERS):
        sent = [send("work", name, queue=QUEUE) for _ in range(how_many)]
        waiters.await_count(name, how_many)
        return sent

    return wait


@pytest.fixture
def check(count, waiters, wait_for, hold):
    """All ran, once, and one that comes now is woken."""

    def check(name, sent):
        for task in sent:
            assert task.get(timeout=SOON) == task.id
        with hold(f"{name}-after"):
            [after] = wait_for(f"{name}-after", 1)
        assert after.get(timeout=SOON) == after.id
        assert count(name, "end") == {task.id: 1 for task in sent}
        assert not waiters(name)

    return check


def test_who_waits_in_a_worker_hardly_asks(way, wait_for, name, hold, check):
    """Semantics 12: told, not polling."""
    with hold(name):
        sent = wait_for(name, 10)
        before = len(way.seen)
        time.sleep(3)
        asked = len(way.seen) - before
    check(name, sent)
    assert asked < 10


def restart(server, way):
    server.restart()


def cut_subscriptions(server, way):
    assert server.client().client_kill_filter(_type="pubsub") > 0


def cut_all(server, way):
    way.refuse()
    way.accept()


def be_away_for_a_while(server, way):
    way.refuse()
    time.sleep(2)
    way.accept()


def freeze(server, way):
    server.pause()
    time.sleep(2)
    server.resume()


def flush_scripts(server, way):
    server.client().script_flush()


INCIDENTS = [restart, cut_subscriptions, cut_all, be_away_for_a_while, freeze, flush_scripts]


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.__name__)
def test_waiters_run_after_the_release_that_follows(incident, own_server, way, wait_for, name, hold, check):
    """Semantics 12: once each, and without waiting for the end of their backoff."""
    with hold(name):
        sent = wait_for(name)
        incident(own_server, way)
    check(name, sent)


def test_waiters_run_after_a_release_that_nobody_heard(way, wait_for, name, hold, waiters, check):
    """Semantics 12: all were passed over as if they were dead; back again, they ask."""
    with hold(name):
        sent = wait_for(name)
        way.refuse()
        wait_until(lambda: not waiters.client.pubsub_channels(), timeout=SOON, what="the listeners' absence")
    assert not waiters(name)
    way.accept()
    check(name, sent)


def is_wait(command):
    return command[:2] == [b"EVALSHA", Script.load("wait").sha.encode()]


@pytest.mark.parametrize("how", ["close", "swallow"])
def test_a_place_whose_confirmation_is_lost_is_a_place(way, send, name, hold, waiters, check, how):
    """Semantics 4 and 12."""
    with hold(name):
        rule = way.lose_reply(is_wait, how=how)
        sent = send("work", name, queue=QUEUE)
        wait_until(lambda: rule.left == 0, timeout=SOON, what="the loss")
        waiters.await_count(name, 1)
    check(name, [sent])


def test_a_place_that_could_not_be_taken_is_asked_for_again(way, send, name, hold, check):
    """Semantics 12: one broken connection does not leave a waiter to its backoff."""
    with hold(name):
        rule = way.drop_request(is_wait)
        sent = send("work", name, queue=QUEUE)
        wait_until(lambda: rule.left == 0, timeout=SOON, what="the loss")
    check(name, [sent])


def test_a_place_that_could_not_be_given_up_holds_nobody_up(way, send, wait_for, name, hold, waiters, check):
    """Semantics 12: its process hears that its turn has come, and passes it on at once."""
    with hold(name):
        rule = way.drop_request(named("ZREM"), times=MANY)
        gone = [send("impatient", name, queue=QUEUE) for _ in range(MANY)]
        for task in gone:
            with pytest.raises(LockBusy):
                task.get(timeout=SOON)
        wait_until(lambda: rule.left == 0, timeout=SOON, what="the losses")
        assert len(waiters(name)) == MANY
        last = send("work", name, queue=QUEUE)
        waiters.await_count(name, MANY + 1)
    check(name, [last])
