"""One thread keeps all leases of a process alive."""

from __future__ import annotations

import threading
import time

import pytest

from celery_rlock import LockLost, LockNotHeld
from celery_rlock.core.execution import Execution
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.core.renewal import Renewer, ServerRenewer, renewer
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from tests.support.processes import wait_until

LOCK = "rlock:{k}"


def renewals(client):
    """How many commands renewed so far."""
    return client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def test_a_lease_lasts_as_long_as_its_holder(rlock, redis):
    """Semantics 7: renewed while it is held."""
    with rlock(ttl=1) as lock:
        time.sleep(2.5)
        assert lock.held
        assert redis.exists(LOCK)


def test_there_is_one_thread_for_all_locks_of_a_server(rlock, lock_server):
    before = [thread for thread in threading.enumerate() if thread.name == "rlock-renewal"]
    with rlock("a", ttl=5), rlock("b", ttl=5), rlock("c", ttl=0.2):
        time.sleep(0.3)
        threads = [thread for thread in threading.enumerate() if thread.name == "rlock-renewal"]
        assert len(threads) <= len(before) + 1


def test_a_hundred_locks_are_renewed_in_one_round_trip(server):
    """The contract's section 8: at most one round trip for 100 locks each third of the ttl."""
    lock_server = RedisLockServer(server.client())
    execution = Execution(Owner("w", "d", "t"))
    trips = []
    original = lock_server.renew
    lock_server.renew = lambda leases: trips.append(batch := list(leases)) or original(batch)
    leases = [execution.lease(lock_server, lock_server.redis_keys(f"k{number}")) for number in range(100)]
    for lease in leases:
        assert lease.enter(3) is None
    time.sleep(3.5)
    assert all(lease.held for lease in leases)
    for lease in leases:
        lease.leave()
    sizes = [len(batch) for batch in trips]
    assert 2 <= len(sizes) <= 5
    assert sizes.count(100) >= len(sizes) - 1
    assert server.client().keys("rlock:*}") == []


def test_nothing_is_renewed_after_the_release(rlock, redis):
    with rlock(ttl=0.3):
        pass
    redis.config_resetstat()
    time.sleep(0.5)
    assert renewals(redis) == 0
    assert not any(server.leases for server in renewer._servers.values())


def test_a_lock_that_another_owner_took_is_lost_at_the_next_renewal(rlock, redis):
    """Semantics 8: lost is told; definitive, not tried again."""
    with pytest.raises(LockNotHeld), rlock(ttl=0.6) as lock:
        told = tell(lock)
        redis.delete(LOCK)
        assert told.wait(5)
        assert lock.lost
        with pytest.raises(LockLost, match="another client released or took it"):
            lock.ensure()


def tell(lock):
    told = threading.Event()
    lock._mine()[1].on_lost(lambda _: told.set())
    return told


def test_a_short_outage_is_bridged(through_proxy, proxy):
    """Semantics 7: transient errors are tried again until the local deadline."""
    with ReentrantLock("k", lock_server=through_proxy, ttl=3) as lock:
        proxy.refuse()
        time.sleep(1.8)
        proxy.accept()
        time.sleep(2.5)
        assert lock.held
        assert lock.owned()


def test_an_outage_longer_than_the_lease_is_a_loss_at_the_deadline(through_proxy, proxy):
    """Semantics 7 and 8: past the local deadline the lock is lost, though Redis may still have it."""
    with pytest.raises(LockNotHeld), ReentrantLock("k", lock_server=through_proxy, ttl=0.8) as lock:
        told = tell(lock)
        proxy.refuse()
        assert told.wait(10)
        assert not lock.held
        with pytest.raises(LockLost, match="its lease ended"):
            lock.ensure()
        proxy.accept()
        assert not lock.held


def test_held_is_false_past_the_deadline_before_any_thread_noticed(rlock, monkeypatch):
    """Semantics 7: the local deadline decides."""
    monkeypatch.setattr(Renewer, "add", lambda *_: None)
    lock = rlock(ttl=0.2)
    lock.acquire()
    assert lock.held
    time.sleep(0.25)
    assert not lock.held
    with pytest.raises(LockNotHeld):
        lock.release()


def test_a_callback_that_fails_or_hangs_stops_no_renewal(rlock, redis):
    with pytest.raises(LockNotHeld), rlock("a", ttl=0.3) as broken, rlock("b", ttl=0.3) as well:
        for callback in (lambda _: 1 / 0, lambda _: time.sleep(2)):
            broken._mine()[1].on_lost(callback)
        redis.delete("rlock:{a}")
        wait_until(lambda: broken.lost, what="the loss")
        time.sleep(1)
        assert well.held


def test_renewal_survives_every_error(server, caplog, monkeypatch):
    lock_server = RedisLockServer(server.client())
    with ReentrantLock("k", lock_server=lock_server, ttl=3) as lock:
        with monkeypatch.context() as patched:
            patched.setattr(ServerRenewer, "_renew", lambda *_: 1 / 0)
            with ReentrantLock("j", lock_server=lock_server, ttl=0.3):
                wait_until(lambda: "rlock-renewal failed" in caplog.text, what="the error")
        time.sleep(2)
        assert lock.held


def test_a_renewal_under_way_while_the_lock_is_released_is_no_loss(rlock, lock_server):
    """Redisson's users met renewals that outlive the unlock: cancelled first, and never called a loss."""
    lock = rlock(ttl=0.3)
    lock.acquire()
    lease = lock._mine()[1]
    lock.release()
    server = renewer._servers[lock_server.identity]
    for answer in (False, True, ConnectionError()):
        server._note(lease, lease.renewal, answer, time.monotonic())
        assert lease.lost is None
        assert lease not in server.leases


def test_a_late_answer_about_an_earlier_hold_does_not_lose_the_next(rlock, lock_server, monkeypatch):
    """tests/interleavings found it: a renewal is under way while its thread leaves and enters again."""
    lock = rlock(ttl=30)
    lock.acquire()
    _, lease = lock._mine()
    renew = lock_server.renew

    def renew_too_late(renewals):
        renewals = list(renewals)
        lock.release()
        lock.acquire()
        return renew(renewals)

    monkeypatch.setattr(lock_server, "renew", renew_too_late)
    renewer._servers[lock_server.identity]._renew([lease])
    assert lock.held
    assert lease in renewer._servers[lock_server.identity].leases
    lock.release()


def test_a_lease_that_cannot_get_longer_is_not_renewed(rlock, redis, monkeypatch):
    """Semantics 7: nor does the thread look at it again and again."""
    looks, renew = [], ServerRenewer._renew
    monkeypatch.setattr(ServerRenewer, "_renew", lambda *args: looks.append(args) or renew(*args))
    with rlock("warm up"):
        pass
    with rlock(ttl=3, max_hold=3) as lock:
        redis.config_resetstat()
        time.sleep(2.3)  # a renewal would be due after a second
        assert lock.held
        assert renewals(redis) == 0
    assert 1 <= len(looks) <= 3


def test_the_owner_learns_with_a_renewal_who_replaces_it(rlock, lock_server):
    """Semantics 20: once, and keeps the lock."""
    with rlock(ttl=0.6) as lock:
        lease, told = lock._mine()[1], []
        lease.on_replaced(told.append)
        time.sleep(0.5)
        assert told == []  # a renewal by itself tells nothing
        lock_server.replace(lease.redis_keys, lease.owner, "", "newer", 0, 60, comes_again=False)
        wait_until(lambda: told, what="the name of the newer one")
        time.sleep(0.5)
        assert told == ["newer"]
        assert lock.held


def test_a_renewal_that_fails_is_logged_with_its_key_and_owner(through_proxy, proxy, caplog):
    with ReentrantLock("k", lock_server=through_proxy, ttl=3) as lock:
        proxy.refuse()
        wait_until(lambda: "could not renew" in caplog.text, timeout=20, what="the log line")
        proxy.accept()
        [record, *_] = [record for record in caplog.records if "could not renew" in record.getMessage()]
        assert (record.key, record.owner) == ("k", lock.owner)


def test_the_lock_of_a_thread_that_has_ended_is_freed_before_its_lease_ends(rlock, redis, caplog):
    thread = threading.Thread(target=rlock(ttl=30).acquire)
    thread.start()
    thread.join()
    assert redis.exists(LOCK)
    [lease] = [lease for server in renewer._servers.values() for lease in server.leases]
    next(server for server in renewer._servers.values() if lease in server.leases)._renew([lease])
    assert "a thread ended without releasing lock 'k'" in caplog.text
    wait_until(lambda: not redis.exists(LOCK), what="the lock to be free")
