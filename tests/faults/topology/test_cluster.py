"""The lock on a Cluster: on every slot, in one round trip a node, and woken wherever the key lives."""

from __future__ import annotations

import time

import pytest

from celery_rlock.core.listener import Ears, listener_of
from celery_rlock.core.lock import RLock
from celery_rlock.core.name import Owner
from celery_rlock.core.replies import Heir, Taken
from tests.support.processes import wait_until
from tests.topologies.waiting import (
    SOON,
    WOKEN_WITHIN,
    Waiter,
    WaitingProcess,
    await_renewal,
    await_replication,
    await_waiters,
    hand_over,
    has_lock,
    through_outages,
    waiters_of,
)

KEYS = 200
LEASES = 100
LONG_LEASE = 60.0
LEASE = 15.0
ROUNDS = 4
#: One by one, each node would have to read about thirty times.
FEW_READS = 10
ODD_KEYS = ["{", "}", "{}", "a{b}c", "{a}{b}", "%", "%7B", "ключ", "a b", "x" * 500, "a:b:{c}:token"]


@pytest.fixture
def scripts(scripts_on, cluster):
    return scripts_on(cluster)


def errors_of(node):
    with node.client() as client:
        return {kind.removeprefix("errorstat_") for kind in client.info("errorstats")}


def reads_of(node):
    """How often it has read something from a client."""
    with node.client() as client:
        return client.info("stats")["total_reads_processed"]


def test_locks_on_keys_of_all_nodes_are_taken_entered_again_and_released(scripts, cluster, name):
    """Semantics 1 and 3."""
    locks = [RLock(f"{name}-{number}", scripts=scripts) for number in range(KEYS)]
    for lock in locks:
        assert lock.acquire(blocking=False)
        assert lock.acquire(blocking=False)
        lock.release()
    assert all(any(has_lock(primary, lock.key) for lock in locks) for primary in cluster.primaries)
    other = Owner("elsewhere", "1", "other")
    for lock in locks:
        busy = scripts.acquire(scripts.name(lock.key), other, 1, 1, "")
        assert busy.holder == lock.owner
        lock.release()
        assert not lock.locked()


@pytest.mark.parametrize("key", ODD_KEYS, ids=range(len(ODD_KEYS)))
def test_every_script_stays_in_the_slot_of_its_key(scripts, cluster, name, key):
    """Semantics 15: whatever the key is made of, no script touches two slots."""
    lock_name = scripts.name(f"{key}-{name}")
    owner, other = Owner("here", "1", "task"), Owner("there", "2", "other")
    place = listener_of(scripts).place(lock_name, other, "", 5)
    assert isinstance(scripts.acquire(lock_name, owner, 1, 5, ""), Taken)
    assert scripts.renew([(lock_name, owner, 5)]) == [True]
    assert scripts.wait([place])[0] > 0
    assert scripts.copy(lock_name, "task", 0) == 1
    assert scripts.finish(lock_name, owner, 0) == 1
    assert scripts.copy(lock_name, "task", 0) == 2
    assert isinstance(scripts.acquire(lock_name, owner, 1, 5, ""), Taken)
    assert scripts.release(lock_name, owner, 0, heir=Heir("rest", 1)) == 1
    scripts.give_up(place)
    scripts.tell_ended(lock_name, "task", 1)
    assert scripts.locked(lock_name)
    assert not any("CROSSSLOT" in errors_of(node) for node in cluster.nodes)


def test_a_hundred_leases_are_renewed_in_a_trip_to_each_node(scripts, cluster, name):
    """Semantics 7: in batches."""
    owner = Owner("here", "1", "task")
    names = [scripts.name(f"{name}-{number}") for number in range(LEASES)]
    for lock_name in names:
        assert isinstance(scripts.acquire(lock_name, owner, 1, LEASE, ""), Taken)
    leases = [(lock_name, owner, LONG_LEASE) for lock_name in names]
    scripts.renew(leases)  # the nodes know the script from now on
    before = {node: reads_of(node) for node in cluster.primaries}
    assert scripts.renew(leases) == [True] * LEASES
    reads = [reads_of(node) - count for node, count in before.items()]
    assert max(reads) < FEW_READS, reads
    for lock_name in names:
        assert scripts.release(lock_name, owner, 0) == 1


def test_a_batch_of_renewals_tells_each_lease_its_own_answer(scripts, cluster, name):
    """Semantics 3 and 7: what is gone on one node is no matter of the others, nor is a wrong type."""
    owner = Owner("here", "1", "task")
    keys = [cluster.key_on(primary, f"{name}-{place}") for primary in cluster.primaries for place in "ab"]
    names = [scripts.name(key) for key in keys]
    for lock_name in names[::2]:
        scripts.acquire(lock_name, owner, 1, LEASE, "")
    scripts.client.set(names[1].lock, "no lock", px=5000)
    answers = scripts.renew([(lock_name, owner, LEASE) for lock_name in names])
    assert answers[::2] == [True] * 3
    assert "WRONGTYPE" in str(answers[1])
    assert answers[3::2] == [False] * 2


def test_a_release_wakes_who_waits_on_any_node(scripts, cluster, name):
    """Semantics 12: at least one hand-over a node must be too quick for somebody who asks now and then."""
    for primary in cluster.primaries:
        key = cluster.key_on(primary, name)
        lock = RLock(key, scripts=scripts, ttl=LONG_LEASE)
        hand_overs = [hand_over(lock, key, lambda primary=primary: primary) for _ in range(ROUNDS)]
        assert min(hand_overs) < WOKEN_WITHIN
        assert not waiters_of(primary, key)


class Told:
    """Has a place among the waiters, and counts what it is told."""

    def __init__(self, scripts, name, who):
        self.turns = self.nexts = 0
        self._scripts, self._listener = scripts, listener_of(scripts)
        self.place = self._listener.place(scripts.name(name), Owner("here", who, who), "", 30)

    def take_place(self):
        self._listener.add(self._scripts, self.place, Ears(self._on_turn, self._on_next, lambda: None))
        wait_until(self._listener.listening.is_set, timeout=SOON, what="it to listen")
        assert self._scripts.wait([self.place])[0] > 0

    def leave(self):
        self._listener.discard(self.place)
        self._scripts.give_up(self.place)

    def _on_turn(self):
        self.turns += 1

    def _on_next(self):
        self.nexts += 1


@pytest.mark.parametrize("node", range(3))
def test_a_turn_is_told_once_and_again_when_it_comes_again(scripts, cluster, name, node):
    """Semantics 12: a Cluster passes what is published on to all its nodes; a waiter hears it once."""
    primary = cluster.primaries[node]
    key = cluster.key_on(primary, name)
    owner, lock_name = Owner("here", "0", "holder"), scripts.name(key)
    first, second = Told(scripts, key, "a"), Told(scripts, key, "b")
    for turn in range(1, ROUNDS + 1):
        assert isinstance(scripts.acquire(lock_name, owner, 1, LONG_LEASE, ""), Taken)
        first.take_place()
        if turn == 1:
            second.take_place()
        primary.client().zadd(lock_name.waiters, {first.place.waiter: 0})  # in front, though it came last
        scripts.release(lock_name, owner, 0)
        wait_until(lambda turn=turn: first.turns >= turn, timeout=SOON, what="the turn")
        wait_until(lambda turn=turn: second.nexts >= turn, timeout=SOON, what="the next one's look")
    time.sleep(0.3)  # whatever would be told a second time has the time to arrive
    assert (first.turns, first.nexts) == (ROUNDS, 0)
    assert (second.turns, second.nexts) == (0, ROUNDS)
    second.leave()


def is_heard(node, listener):
    with node.client() as client:
        return client.pubsub_numsub(f"rlock:wake:{listener}")[0][1] > 0


@pytest.mark.parametrize("node", range(3))
def test_a_waiter_that_is_dead_is_passed_over_on_any_node(scripts, cluster, name, node):
    """Semantics 12: the key's node knows that nobody hears, and tells the one behind in the same moment."""
    primary = cluster.primaries[node]
    key = cluster.key_on(primary, name)
    owner, lock_name = Owner("here", "0", "holder"), scripts.name(key)
    assert isinstance(scripts.acquire(lock_name, owner, 1, LONG_LEASE, ""), Taken)
    with WaitingProcess(cluster.url, key) as dead:
        dead.launch()
        await_waiters(lambda: primary, key, 1)
        listener = waiters_of(primary, key)[0].decode().partition(":")[0]
        assert is_heard(primary, listener)
        alive = Told(scripts, key, "alive")
        alive.take_place()
        dead.kill()
    wait_until(lambda: not is_heard(primary, listener), timeout=SOON, what="the node to miss the dead")
    scripts.release(lock_name, owner, 0)
    wait_until(lambda: alive.turns, timeout=SOON, what="the turn of the one behind")
    assert (alive.turns, alive.nexts) == (1, 0)
    assert not waiters_of(primary, key)


def test_a_hold_survives_the_death_of_its_primary(scripts, cluster, name):
    """Semantics 7, 12 and 14: it is renewed, entered again and released on the new one, its waiter woken."""
    victim = cluster.primaries[0]
    key = cluster.key_on(victim, name)
    elsewhere = RLock(cluster.key_on(cluster.primaries[1], name), scripts=scripts, ttl=LEASE)
    lock = RLock(key, scripts=scripts, ttl=LEASE)
    with lock, elsewhere:
        token = lock.token
        waiter = Waiter(lock)
        heir = cluster.replica_of(victim)
        await_replication(heir, key)
        victim.kill()
        assert cluster.await_failover(victim, key) is heir
        await_renewal(heir, key)
        through_outages(lock.acquire)
        assert (lock.depth, lock.token) == (2, token)
        lock.release()
        await_waiters(lambda: heir, key, 1)
        elsewhere.ensure()
    waiter.join(SOON)
    assert waiter.token > token
    hand_overs = [hand_over(lock, key, lambda: heir) for _ in range(ROUNDS)]
    assert min(hand_overs) < WOKEN_WITHIN
