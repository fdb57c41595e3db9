"""The asyncio lock on Sentinel and on a Cluster: failovers, moving slots, and other kinds of owners."""

from __future__ import annotations

import asyncio
import threading

import pytest

import celery_rlock
from celery_rlock import LockUnavailable
from celery_rlock.asyncio import RLock
from tests.asyncio.conftest import until
from tests.faults.topology.waiters import await_replication, has_lock
from tests.support.cluster import Cluster, Migration
from tests.support.sentinel import SentinelSetup
from tests.support.servers import DEFAULT_KIND

WITHIN = 40


@pytest.fixture(scope="module")
def sentinel():
    with SentinelSetup.start(DEFAULT_KIND) as setup:
        yield setup


@pytest.fixture(scope="module")
def cluster():
    with Cluster.start(DEFAULT_KIND) as cluster:
        yield cluster


async def acquired(key, **options):
    """A lock, as soon as a server can be reached again."""
    lock = RLock(key, **options)
    end = asyncio.get_running_loop().time() + WITHIN
    while True:
        try:
            if await lock.acquire(timeout=5):
                return lock
        except LockUnavailable:
            assert asyncio.get_running_loop().time() < end, "no lock after the failover"
            await asyncio.sleep(0.1)


async def count_together(name):
    """Coroutines and a thread increment a number under one lock."""
    numbers = {"n": 0}

    async def in_task():
        async with RLock(name):
            before = numbers["n"]
            await asyncio.sleep(0.002)
            numbers["n"] = before + 1

    def in_thread():
        for _ in range(5):
            with celery_rlock.RLock(name):
                numbers["n"] += 1

    await asyncio.gather(asyncio.to_thread(in_thread), *(in_task() for _ in range(20)))
    assert numbers["n"] == 25


def test_sentinel_serves_coroutines_and_threads_and_follows_a_failover(run, app_on, sentinel, name):
    app_on(sentinel.url)

    async def main():
        await count_together(name)
        old = await asyncio.to_thread(sentinel.demote_primary)
        await asyncio.to_thread(sentinel.await_failover, old)
        lock = await acquired(f"{name}-after")
        assert await lock.owned()
        await lock.release()
        await count_together(name)

    run(main())
    sentinel.mend()


def test_cluster_serves_coroutines_and_threads_and_follows_a_failover(run, app_on, cluster, name):
    app_on(cluster.url)

    async def main():
        await count_together(name)
        async with RLock(f"{name}-1", ttl=1), RLock(f"{name}-2", ttl=1), RLock(f"{name}-3", ttl=1) as lock:
            await asyncio.sleep(1.5)  # renewals on several nodes
            assert await lock.owned()
        lock_key = f"rlock:{{{name}}}"
        old = await asyncio.to_thread(cluster.primary_of, lock_key)
        await asyncio.to_thread(cluster.demote, old)
        await asyncio.to_thread(cluster.await_failover, old, lock_key)
        lock = await acquired(name)
        assert await lock.owned()
        await lock.release()
        await count_together(name)

    run(main())
    cluster.mend()


def test_a_lock_is_renewed_and_released_while_its_slot_moves(run, app_on, cluster, name):
    app_on(cluster.url)

    async def main():
        async with RLock(name, ttl=2) as lock:
            move = Migration(cluster, f"rlock:{{{name}}}")
            await asyncio.to_thread(move.begin)  # not in the loop, which renews the lease
            await asyncio.to_thread(move.move_keys)
            await asyncio.sleep(1)
            assert lock.held
            await asyncio.to_thread(move.end)
            await asyncio.sleep(1)
            assert lock.held
            assert await lock.owned()
        await until(lambda: _is_free(name), "the release on the new node")

    run(main())


@pytest.mark.parametrize(
    "verb", ["acquire", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("renew", "release"))]
)
def test_a_primary_that_slept_through_a_failover_confirms_nothing_more(run, app_on, cluster, name, verb):
    """Semantics 1: it executes what it received while it was frozen, though it has a successor."""
    app_on(f"{cluster.url}?socket_timeout=10")  # longer than a loaded machine needs
    old = cluster.primary_of(name)

    async def main():
        lock = RLock(name, ttl=60)
        async with lock:
            pass  # the scripts are known, and this client has connections
        if verb != "acquire":
            await lock.acquire()
            await asyncio.to_thread(await_replication, cluster.replica_of(old), name)
        old.pause()
        new = await until(lambda: cluster.successor_of(old, name), "another node to take over")
        threading.Timer(1.0, old.resume).start()
        if verb == "acquire":  # the request is sent again, to the new primary
            assert await lock.acquire()
            assert has_lock(new, name)
        elif verb == "renew":
            with pytest.raises(LockUnavailable, match="another node has become the primary"):
                await lock.extend(60)
        else:
            await lock.release()
            await until(lambda: not has_lock(new, name), "the new primary to free the lock")

    try:
        run(main())
    finally:
        old.resume()
        cluster.mend()


async def _is_free(name):
    return not await RLock(name).locked()


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_replicas_must_have_the_lock(run, app_on, request, kind, name):
    """`rlock_replicas` counts for coroutines too."""
    url = request.getfixturevalue(kind).url
    app_on(url, rlock_replicas=1)

    async def main():
        async with RLock(name, ttl=3) as lock:
            await asyncio.sleep(3.1)
            assert lock.held
        app_on(url, rlock_replicas=2)
        with pytest.raises(LockUnavailable, match="1 of 2 replicas"):
            await RLock(name).acquire()

    run(main())
