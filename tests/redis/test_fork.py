"""A forked child is another process: it shares neither locks of Redis nor locks of Python."""

from __future__ import annotations

import os
import signal
import threading

from celery_rlock.core.lock import ReentrantLock


def in_child(work):
    """The exit code of a fork that does `work`: 0 when it returns something true within 20 s."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has a handler of its own
        signal.alarm(20)
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def takes(lock_server, key):
    def work():
        with ReentrantLock(key, lock_server=lock_server) as lock:
            return lock.owned()

    return work


def test_a_child_has_connections_of_its_own(lock_server, redis):
    with ReentrantLock("parent", lock_server=lock_server) as lock:
        assert [in_child(takes(lock_server, f"child-{turn}")) for turn in range(3)] == [0, 0, 0]
        assert lock.owned()
    assert redis.ping()


def test_a_thread_in_the_middle_of_a_command_does_not_hang_the_child(lock_server):
    """The worker's parent forks a new pool child at the moment at which it releases the dead one's lock."""
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock_server.client.connection_pool._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        assert in_child(takes(lock_server, "k")) == 0
    finally:
        done.set()
        thread.join()


def test_a_childs_renewal_is_its_own(lock_server, redis):
    with ReentrantLock("parent", lock_server=lock_server, ttl=2):

        def work():
            with ReentrantLock("child", lock_server=lock_server, ttl=2) as lock:
                signal.sigtimedwait([], 3)
                return lock.owned()

        assert in_child(work) == 0
        assert redis.exists("rlock:{parent}")
