"""The lock works on every slot of a Cluster, renews in one round trip to each node, and wakes waiters."""

from __future__ import annotations

import threading
import time

import pytest
import redis
from redis.crc import key_slot

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Release, Taken
from celery_rlock.server.wakeups import WakeCallbacks
from tests.faults import verbs
from tests.faults.topology.waiters import (
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
from tests.support.processes import wait_until

KEYS = 200
LEASES = 100
LONG_LEASE = 60.0
LEASE = 15.0
ROUNDS = 4
#: Renewals one by one would need about thirty reads on each node.
FEW_READS = 10
ODD_KEYS = ["{", "}", "{}", "a{b}c", "{a}{b}", "%", "%7B", "ключ", "a b", "x" * 500, "a:b:{c}:token"]


@pytest.fixture
def lock_server(lock_server_on, cluster):
    return lock_server_on(cluster)


def errors_of(node):
    with node.client() as client:
        return {kind.removeprefix("errorstat_") for kind in client.info("errorstats")}


def reads_of(node):
    """How often the node has read data from a client."""
    with node.client() as client:
        return client.info("stats")["total_reads_processed"]


def test_locks_on_all_nodes_are_taken_entered_again_and_released(lock_server, cluster, name):
    """Semantics 1 and 3."""
    locks = [ReentrantLock(f"{name}-{number}", lock_server=lock_server) for number in range(KEYS)]
    for lock in locks:
        assert lock.acquire(blocking=False)
        assert lock.acquire(blocking=False)
        lock.release()
    assert all(any(has_lock(primary, lock.key) for lock in locks) for primary in cluster.primaries)
    other = Owner("elsewhere", "1", "other")
    for lock in locks:
        busy = lock_server.acquire(lock_server.redis_keys(lock.key), other, 1, 1, "")
        assert busy.holder == lock.owner
        lock.release()
        assert not lock.locked()


def test_every_script_stays_in_the_slot_of_its_key(lock_server, cluster):
    """Semantics 15: no script touches two slots, whatever characters the key has."""
    for key in ODD_KEYS:
        verbs.use_all(lock_server, stem=key)
        assert not any("CROSSSLOT" in errors_of(node) for node in cluster.nodes), key


def test_a_hundred_leases_are_renewed_in_one_round_trip_to_each_node(lock_server, cluster, name):
    """Semantics 7: renewal in batches."""
    owner = Owner("here", "1", "task")
    batch = [lock_server.redis_keys(f"{name}-{number}") for number in range(LEASES)]
    taken = {redis_keys: lock_server.acquire(redis_keys, owner, 1, LEASE, "") for redis_keys in batch}
    leases = [Renewal(redis_keys, owner, reply.token, LONG_LEASE) for redis_keys, reply in taken.items()]
    lock_server.renew(leases)  # the nodes know the script from now on
    before = {node: reads_of(node) for node in cluster.primaries}
    assert lock_server.renew(leases) == [True] * LEASES
    reads = [reads_of(node) - count for node, count in before.items()]
    assert max(reads) < FEW_READS, reads
    for redis_keys in batch:
        assert lock_server.release(redis_keys, owner, Release()) == 1


def test_each_lease_of_a_batch_of_renewals_gets_its_own_answer(lock_server, cluster, name):
    """Semantics 3 and 7: a missing lock or a key of another type does not affect the other leases."""
    owner = Owner("here", "1", "task")
    keys = [cluster.key_on(primary, f"{name}-{place}") for primary in cluster.primaries for place in "ab"]
    batch = [lock_server.redis_keys(key) for key in keys]
    tokens = {keys: lock_server.acquire(keys, owner, 1, LEASE, "").token for keys in batch[::2]}
    lock_server.client.set(batch[1].lock, "no lock", px=5000)
    answers = lock_server.renew([Renewal(keys, owner, tokens.get(keys, 1), LEASE) for keys in batch])
    assert answers[::2] == [True] * 3
    assert "WRONGTYPE" in str(answers[1])
    assert answers[3::2] == [False] * 2


def test_a_release_wakes_the_waiter_on_every_node(lock_server, cluster, name):
    """Semantics 12: on each node at least one hand-over is quicker than the waiter's polling interval."""
    for primary in cluster.primaries:
        key = cluster.key_on(primary, name)
        lock = ReentrantLock(key, lock_server=lock_server, ttl=LONG_LEASE)
        hand_overs = [hand_over(lock, key, lambda primary=primary: primary) for _ in range(ROUNDS)]
        assert min(hand_overs) < WOKEN_WITHIN
        assert not waiters_of(primary, key)


class CountingWaiter:
    """A waiter that counts its notifications: that it is its turn, and that it is next."""

    def __init__(self, lock_server, name, who):
        self.turns = self.nexts = 0
        self._lock_server, self._wakeups = lock_server, lock_server.wakeups
        self._callbacks = WakeCallbacks(self._on_turn, self._on_next, lambda: None)
        self.place = self._wakeups.place(lock_server.redis_keys(name), Owner("here", who, who), 0, 30)

    def take_place(self):
        self._wakeups.add(self.place, self._callbacks)
        wait_until(lambda: self._wakeups.listening, timeout=SOON, what="the subscription")
        assert self._lock_server.wait([self.place])[0] > 0

    def leave(self):
        self._wakeups.discard(self.place, self._callbacks)
        self._lock_server.give_up(self.place)

    def _on_turn(self):
        self.turns += 1

    def _on_next(self):
        self.nexts += 1


@pytest.mark.parametrize("node", range(3))
def test_a_waiter_is_notified_once_for_each_turn(lock_server, cluster, name, node):
    """Semantics 12: a Cluster forwards a published message to all its nodes; a waiter gets it once."""
    primary = cluster.primaries[node]
    key = cluster.key_on(primary, name)
    owner, redis_keys = Owner("here", "0", "holder"), lock_server.redis_keys(key)
    first, second = CountingWaiter(lock_server, key, "a"), CountingWaiter(lock_server, key, "b")
    for turn in range(1, ROUNDS + 1):
        # The holder has waited longer than both waiters, else it could not overtake them.
        primary.client().delete(redis_keys.woken)
        assert isinstance(lock_server.acquire(redis_keys, owner, 1, LONG_LEASE, "", since=1), Taken)
        first.take_place()
        if turn == 1:
            second.take_place()
        # Put the first waiter at the head of the line, although it came last.
        primary.client().zadd(redis_keys.waiters, {first.place.waiter: 0})
        lock_server.release(redis_keys, owner, Release())
        wait_until(lambda turn=turn: first.turns >= turn, timeout=SOON, what="the turn")
        wait_until(lambda turn=turn: second.nexts >= turn, timeout=SOON, what="the news for the next one")
    time.sleep(0.3)  # time for surplus notifications to arrive
    assert (first.turns, first.nexts) == (ROUNDS, 0)
    assert (second.turns, second.nexts) == (0, ROUNDS)
    second.leave()


def has_subscriber(node, listener):
    """Whether the node knows a subscriber of this listener's channel."""
    with node.client() as client:
        return client.pubsub_numsub(f"rlock:wake:{listener}")[0][1] > 0


@pytest.mark.parametrize("node", range(3))
def test_a_dead_waiter_is_skipped_on_every_node(lock_server, cluster, name, node):
    """Semantics 12: no subscriber receives the wake-up of the dead waiter, so the node wakes the next one."""
    primary = cluster.primaries[node]
    key = cluster.key_on(primary, name)
    owner, redis_keys = Owner("here", "0", "holder"), lock_server.redis_keys(key)
    assert isinstance(lock_server.acquire(redis_keys, owner, 1, LONG_LEASE, ""), Taken)
    with WaitingProcess(cluster.url, key) as dead:
        dead.launch()
        await_waiters(lambda: primary, key, 1)
        listener = waiters_of(primary, key)[0].decode().partition(":")[0]
        assert has_subscriber(primary, listener)
        alive = CountingWaiter(lock_server, key, "alive")
        alive.take_place()
        dead.kill()
    wait_until(
        lambda: not has_subscriber(primary, listener), timeout=SOON, what="the node to notice the death"
    )
    lock_server.release(redis_keys, owner, Release())
    wait_until(lambda: alive.turns, timeout=SOON, what="the turn of the next waiter")
    assert (alive.turns, alive.nexts) == (1, 0)
    assert not waiters_of(primary, key)


@pytest.mark.slow
def test_a_held_lock_survives_the_death_of_its_primary(lock_server, cluster, name):
    """Semantics 7, 12 and 14: the new primary renews it, lets its owner in again, and wakes its waiter."""
    victim = cluster.primaries[0]
    key = cluster.key_on(victim, name)
    elsewhere = ReentrantLock(cluster.key_on(cluster.primaries[1], name), lock_server=lock_server, ttl=LEASE)
    lock = ReentrantLock(key, lock_server=lock_server, ttl=LEASE)
    with lock, elsewhere:
        token = lock.token
        waiter = Waiter(lock)
        successor = cluster.replica_of(victim)
        await_replication(successor, key)
        victim.kill()
        assert cluster.await_failover(victim, key) is successor
        await_renewal(successor, key)
        through_outages(lock.acquire)
        assert (lock.depth, lock.token) == (2, token)
        lock.release()
        await_waiters(lambda: successor, key, 1)
        elsewhere.ensure()
    waiter.join(SOON)
    assert waiter.token > token
    hand_overs = [hand_over(lock, key, lambda: successor) for _ in range(ROUNDS)]
    assert min(hand_overs) < WOKEN_WITHIN


ANSWER_AFTER = 1.0
SUCCESSOR = "another node has become the primary"


@pytest.fixture
def after_sending(monkeypatch):
    """Call it with what to do when the next request has been sent."""
    todo = []
    send = redis.Connection.send_packed_command

    def send_and_do(self, *args, **options):
        send(self, *args, **options)
        while todo:
            todo.pop()()

    monkeypatch.setattr(redis.Connection, "send_packed_command", send_and_do)
    return todo.append


def learn(client, name, primary):
    """Another request of this client was told that this node is the key's primary."""
    node = client.get_node(host="127.0.0.1", port=primary.port)
    client.nodes_manager.slots_cache[key_slot(name.encode())] = [node]


@pytest.mark.parametrize(
    "is_known",
    [pytest.param(False, marks=pytest.mark.slow, id="unknown"), pytest.param(True, id="known meanwhile")],
)
@pytest.mark.parametrize("verb", ["acquire", "renew", "release"])
def test_a_primary_that_slept_through_a_failover_confirms_nothing_more(
    cluster, name, verb, after_sending, is_known
):
    """Semantics 1: it executes what it received while it was frozen, though it has a successor."""
    lock_server = RedisLockServer(
        connect(f"{cluster.url}?socket_timeout=10")
    )  # longer than a loaded machine needs
    redis_keys, owner = lock_server.redis_keys(name), Owner("elsewhere", "1", "first")
    verbs.use_all(lock_server, stem=name)  # the scripts are known, and this client has connections
    token = 0
    if verb != "acquire":
        token = lock_server.acquire(redis_keys, owner, 1, LONG_LEASE, "").token
        await_replication(cluster.replica_of(cluster.primary_of(name)), name)
    old = cluster.primary_of(name)
    old.pause()
    resume = threading.Timer(ANSWER_AFTER, old.resume)
    try:
        new = wait_until(
            lambda: cluster.successor_of(old, name), timeout=SOON, what="another node to take over"
        )
        after_sending(resume.start)
        if is_known:
            after_sending(lambda: learn(lock_server.client, name, new))
        if verb == "acquire":  # the request is sent again, to the new primary
            assert isinstance(lock_server.acquire(redis_keys, owner, 1, LONG_LEASE, "", attempt="1"), Taken)
            assert has_lock(new, name)
        elif verb == "renew":
            (answer,) = lock_server.renew([Renewal(redis_keys, owner, token, LONG_LEASE)])
            assert SUCCESSOR in str(answer)
        else:
            lock_server.release(redis_keys, owner, Release())
            wait_until(lambda: not has_lock(new, name), timeout=SOON, what="the new primary to free the lock")
    finally:
        resume.join() if resume.ident else old.resume()
