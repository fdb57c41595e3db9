"""`RLock` behaves as `threading.RLock` does, for a fleet."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as redis_py

from celery_rlock import ConfigurationError, LockBusy, LockLost, LockNotHeld, LockUnavailable, RLock
from celery_rlock.core import lock as lock_module
from celery_rlock.core.execution import current_execution
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.core.renewal import renewer
from celery_rlock.server import wakeups
from celery_rlock.server.client import connect
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import RedisLockServer
from tests.support.processes import free_port, wait_until

LOCK = "rlock:{k}"


def in_thread(work):
    """The result of `work` in another thread, which is another execution."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    return result[0]


def test_a_block_holds_the_lock(rlock, redis):
    lock = rlock()
    with lock as entered:
        assert entered is lock
        assert (lock.held, lock.depth, lock.locked(), lock.owned(), lock.lost) == (True, 1, True, True, False)
        assert redis.hget(LOCK, "@token") == str(lock.token).encode()
    assert (lock.held, lock.depth, lock.locked(), lock.owned(), lock.token) == (False, 0, False, False, 0)


def test_a_client_with_its_own_execute_command_sends_the_scripts_through_it(server):
    """Such a client may add a tenant's prefix, or trace its commands."""
    sent = []

    class Traced(redis_py.Redis):
        def execute_command(self, *args, **options):
            sent.append(args[0])
            return super().execute_command(*args, **options)

    with Traced(port=server.port) as client:
        lock = ReentrantLock("k", lock_server=RedisLockServer(client), ttl=30)
        with lock:  # the first request of a client asks for the server's time
            sent.clear()
        with lock:
            pass
    assert [name for name in sent if name == "EVALSHA"] == ["EVALSHA"] * 3


def test_an_uncontended_cycle_is_exactly_two_commands(rlock, redis):
    """The contract's section 5."""
    with rlock():
        pass
    redis.config_resetstat()
    with rlock():
        pass
    calls = {name: stat["calls"] for name, stat in redis.info("commandstats").items()}
    sent = {name: count for name, count in calls.items() if name in {"cmdstat_evalsha", "cmdstat_eval"}}
    inside = {"hmget", "hkeys", "hset", "pexpire", "time", "getdel", "set", "del", "exists", "get"}
    assert sent == {"cmdstat_evalsha": 2}
    assert set(calls) - set(sent) <= {f"cmdstat_{name}" for name in inside} | {"cmdstat_config|resetstat"}


def test_it_enters_again_in_the_same_thread_under_the_same_token(rlock, redis):
    """Semantics 2: reentrant by execution."""
    with rlock() as outer:
        token = outer.token
        with rlock() as inner:
            assert (inner.depth, inner.token) == (2, token)
            assert redis.hget(LOCK, redis.hkeys(LOCK)[0]) == b"2"
        assert outer.depth == 1
        assert outer.locked()


def test_another_thread_does_not_enter(rlock):
    """Semantics 1 and 2: a thread outside of any task is an execution of its own."""
    with rlock():
        assert in_thread(lambda: rlock().acquire(blocking=False)) is False
    assert in_thread(lambda: rlock().acquire(blocking=False)) is True


def test_only_the_holder_releases(rlock):
    """Semantics 3: owner-checked."""
    with rlock() as lock:

        def foreign_release():
            with pytest.raises(LockNotHeld, match="'k' is not held by"):
                lock.release()
            return lock.owned()

        assert in_thread(foreign_release) is False
        assert lock.owned()


def test_releasing_once_too_often_is_an_error(rlock):
    lock = rlock()
    with lock:
        pass
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_late_release_never_frees_a_successor(rlock, redis):
    """Semantics 3."""
    late = rlock(ttl=1)
    late.acquire()
    redis.delete(LOCK)
    token = in_thread(lambda: (successor := rlock(ttl=5)).acquire() and successor.token)
    time.sleep(1.1)
    with pytest.raises(LockNotHeld):
        late.release()
    assert redis.hget(LOCK, "@token") == str(token).encode()


def test_a_bounded_acquire_gives_up_in_time(rlock):
    with rlock():
        start = time.monotonic()
        assert in_thread(lambda: rlock().acquire(timeout=0.3)) is False
        assert 0.3 <= time.monotonic() - start < 5


def test_a_blocking_acquire_gets_the_lock_when_it_is_freed(rlock):
    lock = rlock()
    lock.acquire()
    got = threading.Event()

    def wait():
        with rlock():
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.wait(0.1)
    lock.release()
    assert got.wait(10)
    thread.join()


def test_a_waiter_that_cannot_be_woken_tries_again_by_itself(through_proxy, proxy, server):
    """Semantics 9: a wake-up is never needed."""
    proxy.drop_request(lambda command: command[0].upper() in {b"SUBSCRIBE", b"SSUBSCRIBE"}, times=1000)
    holder = ReentrantLock("k", lock_server=RedisLockServer(connect(server.url)))
    waiter = ReentrantLock("k", lock_server=through_proxy, ttl=30)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(holder.acquire).result()
        timer = threading.Timer(1.6, lambda: other.submit(holder.release))  # it listens for a second first
        timer.start()
        assert waiter.acquire(timeout=20)
        waiter.release()
        timer.join()


def test_waiting_does_not_poll_busily(rlock, redis):
    with rlock():
        redis.config_resetstat()
        in_thread(lambda: rlock().acquire(timeout=1))
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] < 15


def test_no_increment_is_lost_between_processes(each_server):
    """Semantics 1: exclusive, shown on a counter that many processes read and write apart."""
    code = """
import sys, threading
from celery_rlock.server.client import connect
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.core.renewal import renewer
from celery_rlock.server.lock_server import RedisLockServer
client = connect(sys.argv[1])
def count():
    for _ in range(25):
        with ReentrantLock("k", lock_server=RedisLockServer(client), ttl=10):
            client.set("n", int(client.get("n") or 0) + 1)
threads = [threading.Thread(target=count) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, each_server.url]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert each_server.client().get("n") == b"150"


def test_tokens_grow_and_never_repeat_between_threads(rlock):
    """Semantics 14: fencing."""
    tokens = []

    def take():
        for _ in range(20):
            with rlock() as lock:
                tokens.append(lock.token)  # in order: we hold the lock

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 80
    assert tokens == sorted(set(tokens))


def test_a_forked_child_neither_holds_nor_frees_its_parents_lock(rlock):
    """Semantics 2 and 3: re-entry is by execution, and a fork is another one."""
    with rlock() as lock:
        child = os.fork()
        if child == 0:
            try:
                entered = rlock().acquire(blocking=False) or lock.held
                lock.__exit__(None, None, None)
            except LockNotHeld:
                entered = False
            finally:
                os._exit(int(entered))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.owned()


def test_extend_makes_the_lease_last_and_renewal_does_not_shorten_it(rlock, redis):
    with rlock(ttl=0.6) as lock:
        lock.extend(60)
        time.sleep(0.5)
        assert redis.pttl(LOCK) > 50_000
        lock.ensure()
    with pytest.raises(LockNotHeld):
        lock.extend(5)


def test_extend_without_an_answer_is_an_error_and_extends_nothing(through_proxy, proxy):
    """Semantics 16: the caller must not believe in a lease that Redis does not have."""
    with ReentrantLock("k", lock_server=through_proxy, ttl=30) as lock:
        deadline = lock._mine()[1].deadline
        proxy.refuse()
        with pytest.raises(LockUnavailable, match="'k' is unavailable"):
            lock.extend(600)
        assert lock._mine()[1].deadline == deadline
        proxy.accept()


def test_the_scripts_come_back_after_a_script_flush(rlock, redis):
    with rlock(ttl=0.3) as lock:
        redis.script_flush()
        time.sleep(0.5)  # renewals
        assert lock.owned()
        redis.script_flush()
    redis.script_flush()
    with rlock():
        pass


def test_a_lock_that_is_gone_cannot_be_entered_again(rlock, redis):
    """Semantics 8: lost is told."""
    with pytest.raises(LockNotHeld), rlock() as lock:
        redis.delete(LOCK)
        with pytest.raises(LockLost, match="re-entered"):
            lock.acquire()
        assert lock.lost
        assert not lock.held
        with pytest.raises(LockLost):
            lock.ensure()


def test_a_lost_lock_does_not_hide_the_blocks_own_error(rlock, redis):
    with pytest.raises(ZeroDivisionError), rlock():
        redis.delete(LOCK)
        with pytest.raises(LockLost):
            rlock().acquire()
        1 / 0  # noqa: B018


def test_ensure_without_the_lock_is_an_error(rlock):
    with pytest.raises(LockLost, match="not held here"):
        rlock().ensure()


def test_a_server_that_is_not_there_is_unavailable_soon():
    """Semantics 16: a wrong address gives a clear error."""
    lock = ReentrantLock("k", lock_server=RedisLockServer(connect(f"redis://127.0.0.1:{free_port()}/0")))
    start = time.monotonic()
    with pytest.raises(LockUnavailable, match=r"'k' is unavailable: ConnectionError.*rlock_url"):
        lock.acquire()
    assert time.monotonic() - start < 5


def test_something_else_at_the_key_is_a_clear_error(rlock, redis):
    """Semantics 16: a foreign type at the key."""
    redis.set(LOCK, "text")
    with pytest.raises(ConfigurationError, match="holds something that is not a lock"):
        rlock().acquire()
    assert redis.get(LOCK) == b"text"


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, "30", None, True])
def test_a_bad_ttl_is_an_error(rlock, ttl):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        rlock(ttl=ttl)


def test_arguments_are_checked_as_threading_does(rlock):
    with pytest.raises(ValueError, match="non-blocking"):
        rlock().acquire(blocking=False, timeout=1)
    with pytest.raises(ValueError, match="non-negative"):
        rlock().acquire(timeout=-2)


def test_an_answer_later_than_the_lease_is_not_a_lock(server, proxy):
    """Semantics 7: past the local deadline the lock counts as lost, whatever Redis says later."""
    lock_server = RedisLockServer(connect(proxy.url + "?socket_timeout=5"))
    lock = ReentrantLock("k", lock_server=lock_server, ttl=0.3)
    lock.acquire()
    lock.release()
    proxy.freeze()
    threading.Timer(0.6, proxy.thaw).start()
    with pytest.raises(LockUnavailable, match="longer than the lease"):
        lock.acquire()
    assert lock.depth == 0
    wait_until(lambda: not server.client().exists(LOCK), what="the lock to be freed or to expire")


def test_many_keys_leave_nothing_in_memory(rlock):
    for number in range(50):
        with rlock(f"many-{number}"):
            pass
    keys = [lease.redis_keys.key for lease in lock_module.current_execution().leases()]
    assert [key for key in keys if key.startswith("many-")] == []  # another test may have left a lock


def test_a_killed_holders_lock_is_free_after_its_lease(each_server, rlock):
    """Semantics 7: when the whole process dies the key is free after at most the ttl."""
    code = """
import sys, time
from celery_rlock.server.client import connect
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.core.renewal import renewer
from celery_rlock.server.lock_server import RedisLockServer
ReentrantLock("k", lock_server=RedisLockServer(connect(sys.argv[1])), ttl=1).acquire()
time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code, each_server.url])
    wait_until(rlock().locked, timeout=20, what="the holder")
    holder.kill()
    holder.wait()
    start = time.monotonic()
    assert rlock().acquire(timeout=30)
    assert time.monotonic() - start < 1 + 5
    rlock().release()


def test_a_bounded_with_raises_lock_busy_and_names_the_holder(rlock):
    def enter():
        with pytest.raises(LockBusy) as busy, rlock(timeout=0.05):
            pass
        return busy

    with rlock():
        busy = in_thread(enter)
    assert busy.value.holder.startswith(f"{os.getpid()}@")
    assert "longer timeout" in str(busy.value)


def test_the_timeout_of_the_lock_counts_for_acquire_too(rlock):
    with rlock():
        assert in_thread(lambda: rlock(timeout=0.05).acquire()) is False
        assert in_thread(lambda: rlock(timeout=60).acquire(timeout=0.05)) is False
        assert in_thread(lambda: rlock(timeout=60).acquire(blocking=False)) is False


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-2, ValueError), (math.nan, ValueError), (1e100, OverflowError), ("5", TypeError), (True, TypeError)],
)
def test_a_timeout_that_cannot_be_is_an_error_at_once(rlock, timeout, error):
    with pytest.raises(error):
        rlock(timeout=timeout)


@pytest.mark.parametrize("ttl", [0.5, 2])
def test_max_hold_is_the_end_of_the_lease(rlock, redis, ttl):
    """Also when it is no longer than the ttl: then nothing is renewed."""

    def server_time():
        seconds, micros = redis.time()
        return seconds + micros / 1e6

    lock = rlock(ttl=ttl, max_hold=2)
    lock.acquire()
    # A request may take until its timeout to arrive, and its lease begins then.
    latest = server_time() + 2 + 1
    while not lock.lost:
        assert server_time() + max(0, redis.pttl(LOCK)) / 1000 <= latest
        time.sleep(0.05)
    assert server_time() >= latest - 1.5
    wait_until(lambda: not lock.locked(), timeout=20, what="the lock to be free")
    with pytest.raises(LockNotHeld):
        lock.release()


def test_max_hold_counts_for_its_own_ownership_only(rlock):
    with rlock(ttl=0.6, max_hold=0.6):
        pass
    with rlock(ttl=0.6) as lock:
        time.sleep(1.2)
        assert lock.held


def test_it_is_the_lock_of_a_condition(rlock):
    """Also when the waiting thread has entered the lock twice."""
    condition, items = threading.Condition(rlock()), []

    def produce():
        with condition:
            items.append("item")
            condition.notify()

    producer = threading.Thread(target=produce, daemon=True)
    with condition, condition:
        producer.start()
        assert condition.wait_for(lambda: items, timeout=20)
        assert rlock().depth == 2
    assert rlock().depth == 0
    producer.join()
    with pytest.raises(RuntimeError):
        condition.notify()


def test_a_condition_waits_for_the_lock_as_long_as_another_holder_needs_it(rlock):
    condition, is_notified = threading.Condition(rlock()), threading.Event()

    def produce():
        with condition:
            condition.notify()
            is_notified.set()
            time.sleep(1.5)

    producer = threading.Thread(target=produce, daemon=True)
    with condition:
        producer.start()
        condition.wait(timeout=20)
        assert is_notified.is_set()
        assert rlock().held
    producer.join()


def lost_past_its_deadline(lock, use):
    """Whether `use` raises LockLost, as after a suspend: no thread has looked at the deadline yet."""

    def work():
        lock.acquire()
        current_execution().leases()[0].deadline = now() - 1
        with pytest.raises(LockLost):
            use()
        return True

    return in_thread(work)


def test_a_lock_past_its_local_deadline_is_lost(rlock):
    lock = rlock(ttl=30)
    assert lost_past_its_deadline(lock, lock.ensure)


def test_a_lock_past_its_local_deadline_is_not_extended(rlock, redis):
    lock = rlock(ttl=30)
    assert lost_past_its_deadline(lock, lambda: lock.extend(600))
    assert redis.ttl(LOCK) <= 30


def test_a_client_that_waited_is_collected_when_the_program_has_dropped_it(server, monkeypatch):
    """A program may make a client for each request. Each of them keeps connections."""
    monkeypatch.setattr(wakeups, "SILENCE", 0.1)  # a subscription ends when none has waited for so long

    def wait_in_vain():
        client = server.client()
        assert not RLock("k", client=client).acquire(timeout=0.2)
        return weakref.ref(client)

    with RLock("k", client=server.client()):
        client = in_thread(wait_in_vain)

    def is_collected():
        gc.collect()
        return client() is None

    wait_until(is_collected, timeout=20, what="the client to be collected")


def test_an_acquire_that_is_interrupted_at_its_end_is_not_renewed(rlock, redis, lock_server, monkeypatch):
    """Semantics 4: what a signal handler raises leaves no lock behind, and reports no loss."""

    def interrupt(lease):
        add(lease)
        raise KeyboardInterrupt

    add, lock = renewer.add, rlock(ttl=30)
    with monkeypatch.context() as patched:
        patched.setattr(renewer, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    assert lock.depth == 0
    assert lock._mine()[1] not in renewer._servers[lock_server.identity].leases
    wait_until(lambda: not redis.exists(LOCK), what="the lock to be free")
