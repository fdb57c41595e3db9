"""Two ownerships never have the same token, and an acquire that says yes holds the lock."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from celery_rlock import LockNotHeld, LockUnavailable
from tests.attacks.attack import PATIENCE, Locks, silence
from tests.support.processes import wait_until

TTL = 120


@pytest.fixture
def lock(distant):
    lock = distant(ttl=TTL)
    with lock:
        pass
    return lock


def test_a_release_that_failed_ends_the_ownership(lock, proxy):
    """Point 16: the release never arrived, and the same thread acquires again."""
    tokens = []
    for _ in range(5):
        assert lock.acquire(timeout=PATIENCE)
        tokens.append(lock.token)
        proxy.refuse()
        with suppress(LockNotHeld):
            lock.release()
        time.sleep(0.1)  # what tries again in the background has failed too
        proxy.accept()
    assert lock.acquire(timeout=PATIENCE)
    tokens.append(lock.token)
    assert tokens == sorted(set(tokens))


def test_a_release_whose_reply_was_lost_ends_the_ownership(lock, proxy):
    """Point 16: the release arrived, but its reply did not."""
    tokens = []
    for how in ["close", "swallow"] * 3:
        assert lock.acquire(timeout=PATIENCE)
        tokens.append(lock.token)
        proxy.lose_reply(lambda command: command[0].upper() in {b"EVALSHA", b"EVAL", b"FCALL"}, how, 2)
        with suppress(LockNotHeld, LockUnavailable):
            lock.release()
        wait_until(lambda: not _rules_left(proxy) or lock.acquire(timeout=0), timeout=5)
        while lock.depth:
            tokens.append(lock.token)
            lock.release()
    assert tokens == sorted(set(tokens))


def _rules_left(proxy):
    return any(rule.left for rule in proxy._faults._rules)


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("deaf", [False, True], ids=["woken", "not woken"])
def test_an_acquire_that_says_yes_holds_the_lock(server, proxy, number, deaf):
    """Point 16: after any command of a waiting acquire, the network stands still for more than the lease."""
    ttl = 1.0
    lock = Locks(proxy.url + "?socket_timeout=5")("k", ttl=ttl)
    holder = Locks(server.url)("k", ttl=TTL)
    with lock:
        pass
    commands = {b"EVALSHA", b"EVAL", b"FCALL", b"ZREM"}
    released, said, counted = threading.Event(), [], []

    def freeze_at(command):
        if released.is_set() and command[0].upper() in commands:
            counted.append(command)
            if len(counted) == number:
                proxy.freeze()
                threading.Timer(2.5 * ttl, proxy.thaw).start()
        return False

    proxy.drop_request(freeze_at)

    def wait():
        try:
            taken = lock.acquire(timeout=PATIENCE)
            said.append((taken, lock.held))
            if taken:
                lock.release()
        except (LockUnavailable, LockNotHeld) as error:
            said.append((False, error))

    holder.acquire()
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    time.sleep(0.5)
    released.set()
    if deaf:  # then the waiter keeps its place in line, and has to give it up after it took the lock
        server.client().client_kill_filter(_type="pubsub")
    holder.release()
    waiter.join(PATIENCE * 2)
    assert said, "the waiter hangs"
    taken, held = said[0]
    assert not taken or held is True


def test_a_stream_of_failed_releases_never_repeats_a_token(server, proxy):
    """Point 16: two threads and a network that comes and goes."""
    url = proxy.url + "?socket_timeout=0.2"
    tokens, end = [], time.monotonic() + 4

    def own():
        lock = Locks(url)("k", ttl=TTL)
        while time.monotonic() < end:
            with suppress(LockUnavailable, LockNotHeld):
                if lock.acquire(timeout=1):
                    tokens.append(lock.token)
                    lock.release()

    owners = [threading.Thread(target=own, daemon=True) for _ in range(2)]
    for owner in owners:
        owner.start()
    while time.monotonic() < end:
        time.sleep(0.15)
        with silence(proxy):
            time.sleep(0.15)
    for owner in owners:
        owner.join(30)
        assert not owner.is_alive()
    assert len(tokens) > 10
    assert len(set(tokens)) == len(tokens)
