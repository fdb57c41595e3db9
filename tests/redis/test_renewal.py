"""One thread keeps all leases of a process alive."""

from __future__ import annotations

import threading
import time

import pytest

from celery_rlock import LockLost, LockNotHeld
from celery_rlock.core.execution import Execution
from celery_rlock.core.lock import RLock
from celery_rlock.core.name import Owner
from celery_rlock.core.renewal import Renewer, renewer
from celery_rlock.core.scripts import Scripts
from tests.support.processes import wait_until

LOCK = "rlock:{k}"


def renewals(client):
    """How many commands renewed so far."""
    return client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def test_a_lease_lasts_as_long_as_its_holder(rlock, redis):
    """Semantics 7: renewed while it is held."""
    with rlock(ttl=0.3) as lock:
        time.sleep(1.2)
        assert lock.held
        assert redis.exists(LOCK)


def test_there_is_one_thread_for_all_locks(rlock):
    with rlock("a", ttl=5), rlock("b", ttl=5), rlock("c", ttl=0.2):
        time.sleep(0.3)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("rlock-renewal") == 1


def test_a_hundred_locks_are_renewed_in_one_round_trip(server):
    """The contract's section 8: at most one round trip for 100 locks each third of the ttl."""
    scripts = Scripts(server.client())
    execution = Execution(Owner("w", "d", "t"))
    trips = []
    original = scripts.renew
    scripts.renew = lambda leases: trips.append(batch := list(leases)) or original(batch)
    leases = [execution.lease(scripts, scripts.name(f"k{number}")) for number in range(100)]
    for lease in leases:
        assert execution.enter(lease, 3) is None
    time.sleep(3.5)
    assert all(lease.held for lease in leases)
    for lease in leases:
        execution.leave(lease, 0)
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
    assert renewer._due == {}


def test_a_lock_that_somebody_took_is_lost_at_the_next_renewal(rlock, redis):
    """Semantics 8: lost is told; definitive, not tried again."""
    with pytest.raises(LockNotHeld), rlock(ttl=0.6) as lock:
        told = tell(lock)
        redis.delete(LOCK)
        assert told.wait(5)
        assert lock.lost
        with pytest.raises(LockLost, match="somebody else released or took it"):
            lock.ensure()


def tell(lock):
    told = threading.Event()
    lock._mine()[1].on_lost.append(lambda _: told.set())
    return told


def test_a_short_outage_is_bridged(through_proxy, proxy):
    """Semantics 7: transient errors are tried again until the local deadline."""
    with RLock("k", scripts=through_proxy, ttl=3) as lock:
        proxy.refuse()
        time.sleep(1.8)
        proxy.accept()
        time.sleep(2.5)
        assert lock.held
        assert lock.owned()


def test_an_outage_longer_than_the_lease_is_a_loss_at_the_deadline(through_proxy, proxy):
    """Semantics 7 and 8: past the local deadline the lock is lost, though Redis may still have it."""
    with pytest.raises(LockNotHeld), RLock("k", scripts=through_proxy, ttl=0.8) as lock:
        told = tell(lock)
        proxy.refuse()
        assert told.wait(10)
        assert not lock.held
        with pytest.raises(LockLost, match="its lease ended"):
            lock.ensure()
        proxy.accept()
        assert not lock.held


def test_held_is_false_past_the_deadline_even_if_nobody_has_told(rlock, monkeypatch):
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
        broken._mine()[1].on_lost.extend([lambda _: 1 / 0, lambda _: time.sleep(2)])
        redis.delete("rlock:{a}")
        wait_until(lambda: broken.lost, what="the loss")
        time.sleep(1)
        assert well.held


def test_renewal_survives_every_error(server, caplog):
    scripts = Scripts(server.client())
    with RLock("k", scripts=scripts, ttl=3) as lock:
        broken = renewer._renew
        renewer._renew = lambda _: 1 / 0
        with RLock("j", scripts=scripts, ttl=0.3):
            wait_until(lambda: "renewal failed" in caplog.text, what="the error")
        renewer._renew = broken
        time.sleep(2)
        assert lock.held


def test_a_renewal_under_way_while_the_lock_is_released_is_no_loss(rlock, scripts):
    """Redisson's users met renewals that outlive the unlock: cancelled first, and never called a loss."""
    lock = rlock(ttl=0.3)
    lock.acquire()
    lease = lock._mine()[1]
    lock.release()
    for answer in (False, True, ConnectionError()):
        renewer._note(lease, answer, time.monotonic())
        assert lease.lost is None
        assert lease not in renewer._due
