"""Timeouts are kept, also when the server is silent."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from celery_rlock import LockUnavailable
from tests.attacks.attack import PATIENCE, Locks

#: The socket timeout of these tests. A timeout that is kept is far below it.
SOCKET_TIMEOUT = 2.0


def seconds(call):
    """How long the call takes, whether it returns or finds the server unavailable."""
    start = time.monotonic()
    with suppress(LockUnavailable):
        assert call() is False
    return time.monotonic() - start


@pytest.mark.parametrize("used", [True, False], ids=["connected", "not connected"])
def test_a_short_timeout_is_kept_by_a_silent_server(own_server, used):
    """Point 14."""
    locks = Locks(f"{own_server.url}?socket_timeout={SOCKET_TIMEOUT}&socket_connect_timeout={SOCKET_TIMEOUT}")
    if used:
        with locks():
            pass
    own_server.pause()
    lock = locks("other")
    times = [seconds(lambda: lock.acquire(timeout=0.1)) for _ in range(3)]
    assert min(times) < SOCKET_TIMEOUT / 2, times
    assert times[0] < SOCKET_TIMEOUT, times


def test_a_waiters_timeout_is_kept_when_the_server_falls_silent(own_server):
    """Point 14: the server freezes while the waiter waits."""
    locks = Locks(f"{own_server.url}?socket_timeout={SOCKET_TIMEOUT}")
    holder = locks(ttl=120)
    holder.acquire()
    times = []
    waiter = threading.Thread(target=lambda: times.append(seconds(lambda: locks().acquire(timeout=1))))
    waiter.start()
    time.sleep(0.5)
    own_server.pause()
    waiter.join(PATIENCE)
    own_server.resume()
    assert times, "the waiter hangs"
    assert times[0] < 1 + SOCKET_TIMEOUT / 2
    holder.release()


def test_a_silent_server_is_unavailable_and_leaves_no_lock(own_server):
    """Point 14: what the silent server executes afterwards is taken back."""
    locks = Locks(f"{own_server.url}?socket_timeout={SOCKET_TIMEOUT}")
    with locks(ttl=120):
        pass
    own_server.pause()
    seconds(lambda: locks(ttl=120).acquire(timeout=0.1))
    own_server.resume()
    time.sleep(0.5)
    other = Locks(own_server.url)(ttl=120)
    taken = []
    thread = threading.Thread(
        target=lambda: taken.append(other.acquire(timeout=PATIENCE) and other.release() is None)
    )
    thread.start()
    thread.join()
    assert taken == [True]


@pytest.mark.parametrize("timeout", [1e100, float("inf"), threading.TIMEOUT_MAX * 2])
def test_a_timeout_beyond_the_clock_is_an_overflow(locks, timeout):
    """Point 14: as `threading` has it, whether the lock is free or not."""
    with pytest.raises(OverflowError):
        threading.RLock().acquire(timeout=timeout)
    with pytest.raises(OverflowError):
        locks().acquire(timeout=timeout)
    assert not locks().locked()
