"""`RLock(key, limit=N)`: a semaphore with leases, for threads of any process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rlock import ConfigurationError, LockBusy, RLock
from celery_rlock.core.lock import MOST_PLACES
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from tests.redis.conftest import LOCK, TOKEN, WAITERS

LIMIT, THREADS, ROUNDS = 3, 8, 6


def test_no_more_threads_than_the_limit_are_inside_and_all_get_in(rlock):
    """Semantics 1 and 17."""
    mutex, inside, most, slots = threading.Lock(), set(), 0, set()

    def work():
        nonlocal most
        for _ in range(ROUNDS):
            with rlock(limit=LIMIT) as lock:
                with mutex:
                    assert lock.slot not in inside
                    inside.add(lock.slot)
                    slots.add(lock.slot)
                    most = max(most, len(inside))
                time.sleep(0.005)
                with mutex:
                    inside.discard(lock.slot)
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(future.result(timeout=60) for future in [pool.submit(work) for _ in range(THREADS)])
    assert (most, slots) == (LIMIT, set(range(LIMIT)))


def test_the_whole_key_is_not_taken_for_one_place(rlock, verbs, monkeypatch):
    """The first answer says that the key is held as a whole, and then it is released."""
    with rlock("other"):
        pass  # the first answer only tells the server's time
    verbs.acquire("1:a")
    lock = rlock(limit=2)
    ask = lock._lock_server._ask

    def ask_and_release(*request):
        reply = ask(*request)
        verbs.release("1:a")
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(lock._lock_server, "_ask", ask_and_release)
        assert in_thread(lambda: rlock(limit=2).acquire(blocking=False))
    assert in_thread(lambda: rlock(limit=2).acquire(blocking=False))
    assert not in_thread(lambda: rlock(limit=2).acquire(blocking=False))


def in_thread(do):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result(timeout=30)


def test_it_is_busy_when_all_places_are_taken(rlock):
    with rlock(limit=2):
        assert in_thread(lambda: rlock(limit=2).acquire(blocking=False))
        lock = rlock(limit=2, timeout=0)
        with pytest.raises(LockBusy):
            in_thread(lock.__enter__)


def test_the_same_thread_enters_its_place_again_whatever_limit_it_names(rlock):
    """Semantics 2: the first entry decides."""
    with rlock(limit=2) as outer, rlock() as whole, rlock(limit=9) as inner:
        assert (outer.depth, whole.slot, inner.token) == (3, outer.slot, outer.token)
        assert in_thread(lambda: rlock(limit=9).acquire(blocking=False))
        assert not in_thread(lambda: rlock(limit=9).acquire(blocking=False))
    with rlock() as whole, rlock(limit=5) as inner:
        assert inner.depth == whole.depth == 2
        assert not in_thread(lambda: rlock(limit=5).acquire(blocking=False))


def test_each_place_is_renewed_by_its_own_owner(rlock, redis):
    """Semantics 7: the leases of both last for longer than their ttl."""
    entered, leave = threading.Barrier(3), threading.Event()

    def hold():
        with rlock(limit=2, ttl=0.6) as lock:
            entered.wait(10)
            assert leave.wait(30)
            return lock.held and lock.owned()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(hold) for _ in range(2)]
        entered.wait(10)
        time.sleep(1.5)
        assert not rlock(limit=2).acquire(blocking=False)
        leave.set()
        assert [future.result(timeout=30) for future in futures] == [True, True]
    assert not redis.exists(LOCK, WAITERS)
    assert redis.pttl(TOKEN) > 0


@pytest.mark.parametrize("limit", [0, -1, "2", 2.0, True, None, MOST_PLACES + 1])
def test_a_limit_that_is_none_is_refused(server, limit):
    """Semantics 16."""
    client = connect(server.url)
    with pytest.raises(ConfigurationError, match="a lock's limit must be a whole number from 1 to 1000, not"):
        RLock("k", client=client, limit=limit)


@pytest.mark.parametrize("limit", [1, MOST_PLACES])
def test_the_least_and_the_greatest_limit_are_taken(rlock, limit):
    with rlock(limit=limit) as lock:
        assert lock.slot == 0


def test_a_lock_without_a_limit_costs_what_it_did(rlock, lock_server, redis):
    """Semantics 17: the commands and the memory of an uncontended cycle, as they were without limits."""

    def hold():
        with rlock():
            return redis.memory_usage(LOCK)

    in_thread(hold)
    redis.config_resetstat()
    held = in_thread(hold)  # a thread that holds nothing else
    calls = {name: stat["calls"] for name, stat in redis.info("commandstats").items()}
    assert {
        name.removeprefix("cmdstat_"): count
        for name, count in calls.items()
        if name not in {"cmdstat_config|resetstat", "cmdstat_memory|usage", "cmdstat_info"}
    } == {
        "evalsha": 2,
        "time": 1,
        "exists": 2,
        "getdel": 1,
        "hset": 1,
        "pexpire": 1,
        "hmget": 1,
        "del": 1,
        "set": 1,
    }
    assert held <= 320
    assert isinstance(lock_server, RedisLockServer)
