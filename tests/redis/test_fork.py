"""A forked child is another process: it shares neither locks of Redis nor locks of Python."""

from __future__ import annotations

import os
import signal
import threading

from celery_rlock.core.lock import RLock


def in_child(work):
    """The exit code of a fork that does `work`: 0 when it returns something true within 20 s."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has a handler of its own
        signal.alarm(20)
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def takes(scripts, key):
    def work():
        with RLock(key, scripts=scripts) as lock:
            return lock.owned()

    return work


def test_a_child_has_connections_of_its_own(scripts, redis):
    with RLock("parent", scripts=scripts) as lock:
        assert [in_child(takes(scripts, f"child-{turn}")) for turn in range(3)] == [0, 0, 0]
        assert lock.owned()
    assert redis.ping()


def test_a_thread_in_the_middle_of_a_command_does_not_hang_the_child(scripts):
    """The worker's parent forks a new pool child at the moment at which it releases the dead one's lock."""
    held, done = threading.Event(), threading.Event()

    def hold():
        with scripts.client.connection_pool._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        assert in_child(takes(scripts, "k")) == 0
    finally:
        done.set()
        thread.join()


def test_a_childs_renewal_is_its_own(scripts, redis):
    with RLock("parent", scripts=scripts, ttl=0.6):

        def work():
            with RLock("child", scripts=scripts, ttl=0.6) as lock:
                signal.sigtimedwait([], 1.5)
                return lock.owned()

        assert in_child(work) == 0
        assert redis.exists("rlock:{parent}")
