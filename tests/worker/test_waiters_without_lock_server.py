"""Trouble of the lock server while tasks wait. Afterwards they run, and waking works again."""

from __future__ import annotations

import time
from contextlib import suppress
from hashlib import sha1

import pytest

from celery_rlock import LockBusy, LockNotHeld
from tests.support.daemon import ROOT
from tests.support.faults import named
from tests.support.fixtures import holder as make_hold
from tests.support.fleet import deliveries
from tests.support.outages import cut_subscriptions, flush_scripts, refused, silent
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import DEFAULT_KIND, Server
from tests.worker.awaiting import SOON, Waiters
from tests.worker.proj.waiting import LEASE

QUEUE = "waiters-without-lock-server"
WAITERS = 3
#: If their turns were not passed on, each of them would cost the second that a woken waiter has.
MANY = 30


@pytest.fixture(scope="module")
def own_server():
    """A lock server for these tests only, because they restart it."""
    with Server.start(DEFAULT_KIND) as server:
        yield server


@pytest.fixture(scope="module")
def way(own_server):
    """The workers reach the lock server through this proxy only."""
    with Proxy(own_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module", autouse=True)
def fleet(start_fleet, way):
    with start_fleet(2, concurrency=2, queues=[QUEUE], conf={"rlock_url": way.url}) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def waiters(own_server):
    return Waiters(own_server)


@pytest.fixture(scope="module")
def hold(own_server):
    return make_hold(own_server, LEASE)


@pytest.fixture
def wait_for(send, waiters):
    """Sends tasks that wait for a key."""

    def wait(name, how_many=WAITERS):
        sent = [send("work", name, queue=QUEUE) for _ in range(how_many)]
        waiters.await_count(name, how_many)
        return sent

    return wait


@pytest.fixture
def check(count, waiters, wait_for, hold):
    """Checks that each task ran once, and that a task that waits now is woken."""

    def check(name, sent):
        for task in sent:
            assert task.get(timeout=SOON) == task.id
        with hold(f"{name}-after"):
            [after] = wait_for(f"{name}-after", 1)
        assert after.get(timeout=SOON) == after.id
        assert count(name, "end") == {task.id: 1 for task in sent}
        assert not waiters(name)

    return check


def test_a_waiter_in_a_worker_does_not_poll(way, wait_for, name, hold, check):
    """Semantics 12: woken, not polled."""
    with hold(name):
        sent = wait_for(name, 10)
        before = len(way.seen)
        time.sleep(1.5)
        asked = len(way.seen) - before
    check(name, sent)
    assert asked < 5


def test_a_task_whose_lock_server_is_away_looks_again_soon(fleet, way, send, name):
    """It decides for itself after five seconds without an answer, also if its backoff ended before that."""
    with refused(way):
        sent = send("with_the_default_backoff", name, queue=QUEUE)
        wait_until(lambda: deliveries(fleet)[sent.id] > 2, timeout=SOON, what="it to ask again")
    assert sent.get(timeout=2 * SOON) == sent.id


def restart(server, way):
    server.restart()


def lose_subscriptions(server, way):
    cut_subscriptions(server)


def cut_all(server, way):
    with refused(way):
        pass


def be_away_for_a_while(server, way):
    with refused(way):
        time.sleep(1.5)


def be_silent_for_a_while(server, way):
    with silent(server):
        time.sleep(1.5)


def forget_scripts(server, way):
    flush_scripts(server)


TROUBLES = [restart, lose_subscriptions, cut_all, be_away_for_a_while, be_silent_for_a_while, forget_scripts]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_waiters_run_after_the_release_that_follows(trouble, own_server, way, wait_for, name, hold, check):
    """Semantics 12: each once, and before the end of its backoff."""
    # A server that restarts forgets the lock, and the release says so.
    with suppress(LockNotHeld), hold(name):
        sent = wait_for(name)
        trouble(own_server, way)
    check(name, sent)


def test_waiters_run_after_a_release_that_no_worker_heard(way, wait_for, name, hold, waiters, check):
    """Semantics 12: the release passed over all of them; connected again, they ask."""
    with hold(name):
        sent = wait_for(name)
        way.refuse()
        wait_until(lambda: not waiters.client.pubsub_channels(), timeout=SOON, what="the listeners' absence")
    assert not waiters(name)
    way.accept()
    check(name, sent)


WAIT = sha1((ROOT / "lua" / "wait.lua").read_bytes()).hexdigest().encode()


def is_wait(command):
    return command[:2] == [b"EVALSHA", WAIT]


@pytest.mark.parametrize("how", ["close", "swallow"])
def test_a_waiter_keeps_its_place_though_the_reply_was_lost(way, send, name, hold, waiters, check, how):
    """Semantics 4 and 12: the script may run twice."""
    with hold(name):
        rule = way.lose_reply(is_wait, how=how)
        sent = send("work", name, queue=QUEUE)
        wait_until(lambda: rule.left == 0, timeout=SOON, what="the loss")
        waiters.await_count(name, 1)
    check(name, [sent])


def test_a_waiter_asks_again_for_a_place_that_it_could_not_take(way, send, name, hold, check):
    """Semantics 12: after a broken connection the waiter is still woken, not left to its backoff."""
    with hold(name):
        rule = way.drop_request(is_wait)
        sent = send("work", name, queue=QUEUE)
        wait_until(lambda: rule.left == 0, timeout=SOON, what="the loss")
    check(name, [sent])


def test_a_place_that_could_not_be_given_up_delays_no_other_waiter(
    way, send, wait_for, name, hold, waiters, check
):
    """Semantics 12: its process is woken in its turn, and passes the turn on at once."""
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
