"""Requests that reach the server after their sender has given up on them.

The network is away for one to two seconds. Leases are far longer than every test, so that nothing here is
repaired by the end of a lease.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from celery.signals import before_task_publish

from celery_rlock import DuplicateTask, LockedTask, LockNotHeld, LockUnavailable
from tests.attacks.attack import PATIENCE, Locks, in_thread, silence, taken_by_another
from tests.support.processes import free_port, wait_until

TTL = 120


@pytest.fixture
def lock(distant):
    lock = distant(ttl=TTL)
    with lock:  # a connection, and the scripts
        pass
    return lock


def arrived(proxy, before):
    """Give the late packets time to arrive. There may be none, if their sender could take them back."""
    with suppress(AssertionError):
        wait_until(lambda: len(proxy.seen) > before, timeout=1)
    time.sleep(0.3)


def is_free(lock):
    return taken_by_another(lock)


@pytest.mark.parametrize("attempt", range(3))
def test_a_late_release_does_not_free_the_threads_next_hold(lock, locks, proxy, attempt):
    """Point 3."""
    lock.acquire()
    before = len(proxy.seen)
    with silence(proxy):
        with suppress(LockNotHeld):
            lock.release()
        assert lock.acquire(timeout=PATIENCE)
    arrived(proxy, before)
    assert is_free(locks(ttl=TTL)) is False
    assert lock.owned()
    lock.release()
    assert is_free(locks(ttl=TTL))


def test_a_late_release_does_not_free_a_later_owners_hold(lock, locks, proxy):
    """Point 3: another thread took the key meanwhile."""
    lock.acquire()
    before = len(proxy.seen)
    successor = locks(ttl=TTL)
    with ThreadPoolExecutor(1) as other:
        with silence(proxy):
            with suppress(LockNotHeld):
                lock.release()
            assert other.submit(successor.acquire, timeout=PATIENCE).result()
        arrived(proxy, before)
        assert other.submit(successor.owned).result()
        other.submit(successor.release).result()


def test_a_late_inner_release_does_not_change_the_next_hold(lock, locks, proxy):
    """Point 3: the depth of an earlier ownership says nothing about this one."""
    lock.acquire()
    lock.acquire()
    before = len(proxy.seen)
    with silence(proxy):
        for _ in range(2):
            with suppress(LockNotHeld):
                lock.release()
        assert lock.acquire(timeout=PATIENCE)
    arrived(proxy, before)
    assert (lock.depth, lock.owned()) == (1, True)
    lock.release()
    assert is_free(locks(ttl=TTL))


@pytest.mark.parametrize("away", [0.0, 1.0], ids=["at once", "a second later"])
def test_a_late_acquire_leaves_nothing_behind(lock, locks, proxy, away):
    """Point 3: the attempt has ended, so it must not take the key any more."""
    before = len(proxy.seen)
    with silence(proxy):
        with pytest.raises(LockUnavailable):
            lock.acquire()
        time.sleep(away)
    arrived(proxy, before)
    wait_until(lambda: is_free(locks(ttl=TTL)), timeout=PATIENCE, what="the key to be free")
    assert not lock.held


@pytest.mark.parametrize("limit", [1, 2])
def test_the_first_acquire_of_a_process_leaves_nothing_behind_either(distant, locks, proxy, limit):
    """Point 3: the process has had no answer yet that would tell it the server's time."""
    with locks(ttl=TTL, limit=limit):  # another process has loaded the scripts
        pass
    lock = distant(ttl=TTL, limit=limit)
    assert not lock.locked()  # a connection
    before = len(proxy.seen)
    with silence(proxy):
        with pytest.raises(LockUnavailable):
            lock.acquire()
        time.sleep(lock._lock_server.patience + 1)  # longer than the client tries to undo it
    arrived(proxy, before)
    assert is_free(locks(ttl=TTL))


def test_a_late_acquire_does_not_join_the_threads_next_hold(lock, locks, proxy):
    """Point 3: the same thread took and released the key meanwhile."""
    before = len(proxy.seen)
    with silence(proxy):
        with pytest.raises(LockUnavailable):
            lock.acquire()
        with lock:
            pass
        time.sleep(1)
    arrived(proxy, before)
    wait_until(lambda: is_free(locks(ttl=TTL)), timeout=PATIENCE, what="the key to be free")


def test_a_late_re_entry_does_not_keep_the_lock(lock, locks, proxy):
    """Point 3: the depth of an abandoned re-entry does not outlive the hold."""
    lock.acquire()
    before = len(proxy.seen)
    with silence(proxy):
        with suppress(LockUnavailable):
            lock.acquire()
            lock.release()
        lock.release()
        time.sleep(1)
    arrived(proxy, before)
    wait_until(lambda: is_free(locks(ttl=TTL)), timeout=PATIENCE, what="the key to be free")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["acquire", "release"])
def test_a_network_that_comes_back_whole(server, proxy, verb):
    """Point 3: all connections are silent for a moment, and the users' timeouts apply."""
    lock, other = Locks(proxy.url)(ttl=TTL), Locks(server.url)(ttl=TTL)
    stuck = 0
    for number in range(6):
        with suppress(LockNotHeld):
            if verb == "release":
                assert lock.acquire(timeout=PATIENCE)
            proxy.freeze()
            with suppress(LockUnavailable):
                if verb == "release":
                    lock.release()
                else:
                    lock.acquire(timeout=0.3 * number + 0.1)
            proxy.thaw()
        if verb == "release":
            assert lock.acquire(timeout=PATIENCE)
            time.sleep(0.7)
            stuck += not lock.owned()
            with suppress(LockNotHeld):
                lock.release()
        else:
            while lock.depth:
                with suppress(
                    LockNotHeld
                ):  # the thread that acquired too late may release at the same moment
                    lock.release()
        stuck += not in_thread(lambda: other.acquire(timeout=5) and other.release() is None)
    assert stuck == 0


def test_a_frozen_servers_buffer_does_not_free_the_next_hold(own_server):
    """Point 3: the release waits in the frozen server's socket when its sender gives up."""
    lock = Locks(own_server.url + "?socket_timeout=0.3")(ttl=TTL)
    freed = 0
    for _ in range(6):
        assert lock.acquire(timeout=PATIENCE)
        own_server.pause()
        with suppress(LockNotHeld):
            lock.release()
        own_server.resume()
        assert lock.acquire(timeout=PATIENCE)
        time.sleep(0.3)
        freed += not lock.owned()
        with suppress(LockNotHeld):
            lock.release()
    assert freed == 0


@pytest.fixture
def once(proxy):
    """A task that takes its key when it is published, and its app's lock server behind the proxy."""
    app = Locks(proxy.url + "?socket_timeout=0.5").app

    @app.task(
        base=LockedTask,
        lock_key="once",
        lock_from="publish",
        lock_unavailable="fail",
        lock_duplicate="raise",
        lock_queue_ttl=TTL,
    )
    def once():
        pass

    warm_up = once.apply_async(task_id="warm-up")
    assert warm_up.id == "warm-up"
    return once


def is_published(task):
    try:
        task.apply_async()
    except DuplicateTask:
        return False
    return True


@pytest.mark.parametrize("away", [0.0, 1.0], ids=["at once", "a second later"])
def test_a_failed_publish_does_not_swallow_the_next_call(once, server, proxy, away):
    """Point 3: no phantom holder waits in the queue for an hour."""
    server.client().flushall()
    before = len(proxy.seen)
    with silence(proxy):
        with pytest.raises(LockUnavailable):
            once.apply_async()
        time.sleep(away)
    arrived(proxy, before)
    wait_until(lambda: is_published(once), timeout=PATIENCE, what="a call that is not a duplicate")


def test_a_publish_that_the_broker_refused_does_not_swallow_the_next_call(once, server, proxy):
    """Point 3: the lock server falls silent between taking the key and giving it back."""
    server.client().flushall()
    silent = silence(proxy)

    def fall_silent(**_):
        silent.__enter__()

    with once.app.connection_for_write(f"redis://127.0.0.1:{free_port()}/0") as nowhere:
        before_task_publish.connect(fall_silent, weak=False)
        try:
            before = len(proxy.seen)
            with pytest.raises(Exception, match=r"refused|Connection"):
                once.apply_async(connection=nowhere, retry=False)
        finally:
            before_task_publish.disconnect(fall_silent)
            time.sleep(1)
            silent.__exit__(None, None, None)
    arrived(proxy, before)
    wait_until(lambda: is_published(once), timeout=PATIENCE, what="a call that is not a duplicate")
