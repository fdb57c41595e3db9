"""Connections that the server kills, that run out, or that die silently."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from celery_rlock import LockLost, LockNotHeld, LockUnavailable
from tests.attacks.attack import Locks, raises_unavailable, run_code, silence, taken_by_another, threads
from tests.support.proxy import Proxy


class Killer(threading.Thread):
    """Kills random connections of a server until `stop`."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.client = server.client()
        self.kills = 0
        self._stopped = threading.Event()

    def run(self):
        own = self.client.client_id()
        while not self._stopped.wait(0.005):
            others = [entry["id"] for entry in self.client.client_list() if int(entry["id"]) != own]
            if others:
                self.kills += self.client.client_kill_filter(_id=random.choice(others))

    def stop(self):
        self._stopped.set()
        self.join()


@pytest.mark.parametrize("seconds", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_connections_never_let_two_holders_in(own_server, seconds):
    """Point 1."""
    keys = [Locks(own_server.url)(f"key-{number}", ttl=60) for number in range(6)]
    inside, overlaps, entered = Counter(), [], Counter()
    end = time.monotonic() + seconds

    def contend(_):
        while time.monotonic() < end:
            lock = random.choice(keys)
            with suppress(LockUnavailable, LockNotHeld, LockLost):
                if not lock.acquire(timeout=0.5):
                    continue
                inside[lock.key] += 1
                if inside[lock.key] > 1:
                    overlaps.append(lock.key)
                time.sleep(random.uniform(0, 0.003))
                inside[lock.key] -= 1
                entered[lock.key] += 1
                lock.release()

    killer = Killer(own_server)
    killer.start()
    errors = threads(contend, 24)
    killer.stop()
    assert errors == []
    assert overlaps == []
    assert killer.kills > 10
    assert sum(entered.values()) > 50


def test_120_threads_that_meet_once_leave_a_process_that_can_lock(own_server):
    """Point 2: nothing starves, during the meeting and after it."""
    locks = Locks(own_server.url)

    def meet(number):
        for turn in range(5):
            with locks(f"meeting-{number}-{turn}"):
                time.sleep(0.05)
        with locks("shared"):
            pass

    with locks("renewed", ttl=2) as renewed:
        # The server answers no client for a moment, so that all threads need a connection at the same time.
        threading.Timer(0.1, own_server.client().client_pause, (400,)).start()
        errors = threads(meet, 120)
        assert not raises_unavailable(lambda: taken_by_another(locks("afterwards")))
        time.sleep(3)
        assert renewed.owned()
    failed = Counter(str(error)[:120] for error in errors)
    assert not failed, failed.most_common(3)


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys, time
import gevent
from gevent.event import Event
from celery import Celery
from celery_rlock import RLock
app = Celery("greenlets", broker="memory://")
app.conf.rlock_url = sys.argv[1]
app.set_default()
renewed = RLock("renewed", ttl=2)
renewed.acquire()
failures, inside, all_in = [], [], Event()
def meet(number):
    try:
        with RLock(f"meeting-{number}"):
            inside.append(number)
            if len(inside) == 120:
                all_in.set()
            all_in.wait(8)
        with RLock("shared"):
            pass
    except Exception as error:
        failures.append(repr(error))
gevent.joinall([gevent.spawn(meet, number) for number in range(120)])
def take():
    with RLock("afterwards"):
        return "taken"
later = []
for _ in range(3):
    try:
        later.append(gevent.spawn(take).get(timeout=20))
    except Exception as error:
        later.append(repr(error))
time.sleep(3)
print("failed in the meeting:", len(failures), failures[:2])
print("afterwards:", later, "renewed:", renewed.owned())
assert not failures and later == ["taken"] * 3 and renewed.owned()
"""


@pytest.mark.slow
def test_120_greenlets_that_meet_once_leave_a_process_that_can_lock(own_server):
    """Point 2."""
    pytest.importorskip("gevent")
    run_code(GREENLETS, own_server.url, timeout=70)


def test_the_urls_max_connections_is_honoured_and_enough(own_server):
    """Point 2: threads share the connections, and none of them fails."""
    locks = Locks(own_server.url + "?max_connections=4")
    admin = own_server.client()
    most, stop = [0], threading.Event()

    def count():
        own = admin.client_id()
        while not stop.wait(0.01):
            others = [entry for entry in admin.client_list() if int(entry["id"]) != own]
            most.append(sum(int(entry["sub"]) + int(entry["psub"]) == 0 for entry in others))

    def work(number):
        for turn in range(10):
            with locks(f"own-{number}"):
                pass
            with locks(f"shared-{turn % 2}"):
                pass

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    with locks("renewed", ttl=2) as renewed:
        errors = threads(work, 30)
        stop.set()
        counter.join()
        time.sleep(3)
        assert renewed.owned()
    failed = Counter(str(error)[:120] for error in errors)
    assert not failed, failed.most_common(3)
    # One more: a connection that is about to subscribe does not count as a subscriber yet.
    assert max(most) <= 4 + 1


def warm(locks, count=8):
    """Leave `count` idle connections."""
    together = threading.Barrier(count)

    def use(number):
        together.wait(30)
        for _ in range(20):
            with locks(f"warm-{number}"):
                pass

    assert threads(use, count) == []


def own_connections(server):
    return [entry for entry in server.client().client_list() if entry["name"] == "celery-rlock"]


def test_silently_dead_connections_cost_one_failure(own_server):
    """Point 11: after the first failure no other idle connection is trusted."""
    with Proxy(own_server.port) as proxy:
        locks = Locks(proxy.url + "?socket_timeout=0.5")
        warm(locks)
        assert len(own_connections(own_server)) >= 3
        with silence(proxy):
            first = raises_unavailable(lambda: taken_by_another(locks("first")))
            together = threading.Barrier(8)

            def take(number):
                together.wait(30)
                with locks(f"next-{number}"):
                    pass

            errors = threads(take, 8)
        assert not errors, (first, errors)


def test_silently_dead_connections_do_not_cost_a_held_lock(proxy):
    """Point 11: the renewals of a held lock go on over new connections."""
    locks = Locks(proxy.url + "?socket_timeout=0.5")
    warm(locks)
    with locks("held", ttl=3) as lock:
        with silence(proxy):
            time.sleep(5)
            assert lock.held
        assert lock.owned()


def test_a_server_that_closes_idle_connections_costs_nothing(own_server):
    """Point 11: a connection that the server has closed is replaced, not reported."""
    locks = Locks(own_server.url)
    warm(locks)
    for _ in range(5):
        with own_server.client() as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        with locks("next"):
            pass
