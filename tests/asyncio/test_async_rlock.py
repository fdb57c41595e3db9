"""`celery_rlock.asyncio.RLock`: owned by the asyncio task, and one lock with every other owner."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
import redis.asyncio

import celery_rlock
from celery_rlock import ConfigurationError, LockBusy, LockLost, LockNotHeld, LockUnavailable
from celery_rlock.aio.async_server import AsyncRedisLockServer
from celery_rlock.asyncio import RLock
from celery_rlock.core.execution import Execution, running
from celery_rlock.server.owner import Owner
from tests.asyncio.conftest import LOCK, until
from tests.support.processes import free_port

COUNT = """
import sys
from celery import Celery
import redis
app = Celery("other")
app.conf.rlock_url = sys.argv[1]
app.set_default()
from celery_rlock import RLock
client = redis.Redis.from_url(sys.argv[1])
for _ in range(25):
    with RLock("k"):
        client.set("n", int(client.get("n") or 0) + 1)
"""


def test_a_block_holds_the_lock(run, rlock, client):
    async def main():
        lock = rlock()
        async with lock as entered:
            assert entered is lock
            assert (lock.held, lock.depth, lock.lost) == (True, 1, False)
            assert await lock.locked()
            assert await lock.owned()
            assert client.hget(LOCK, "@token") == str(lock.token).encode()
            assert lock.owner.partition("/")[2].encode() in client.hkeys(LOCK)
        assert (lock.held, lock.depth, lock.token) == (False, 0, 0)
        assert not await lock.locked()
        assert not await lock.owned()

    run(main())
    assert not client.exists(LOCK)


def test_fifty_coroutines_and_another_process_lose_no_increment(run, rlock, server, client):
    """Semantics 1: exclusive, between coroutines and the threads of other processes."""
    tokens = []

    async def count():
        async with rlock() as lock:
            tokens.append(lock.token)
            before = int(client.get("n") or 0)
            await asyncio.sleep(0.001)
            client.set("n", before + 1)

    async def main():
        await asyncio.gather(*(count() for _ in range(50)))

    other = subprocess.Popen([sys.executable, "-c", COUNT, server.url])
    run(main())
    assert other.wait(60) == 0
    assert client.get("n") == b"75"
    assert len(tokens) == 50
    assert tokens == sorted(set(tokens))


def test_the_same_task_enters_again_under_the_same_token(run, rlock, client):
    """Semantics 2: reentrant by execution."""

    async def main():
        async with rlock() as outer, rlock() as inner:
            assert (inner.depth, inner.token) == (2, outer.token)
            field = outer.owner.partition("/")[2]
            assert client.hget(LOCK, field) == b"2"
            await inner.release()
            assert client.hget(LOCK, field) == b"1"
            assert await inner.acquire()
        assert not await outer.locked()

    run(main())


def test_a_child_task_is_another_owner_and_waits(run, rlock):
    async def main():
        async with rlock() as lock:

            async def child():
                assert (lock.held, lock.depth) == (False, 0)
                with pytest.raises(LockNotHeld):
                    await lock.release()
                return await lock.acquire(timeout=0.1)

            assert await asyncio.create_task(child()) is False
            waiting = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0.05)
            assert not waiting.done()
        assert await waiting is True

    run(main())


def test_a_task_that_ends_without_a_release_frees_its_lock(run, rlock, client):
    async def main():
        async def forgetful():
            await rlock().acquire()

        await asyncio.create_task(forgetful())
        await until(lambda: not client.exists(LOCK), "the lock of a task that has ended")

    run(main())


def test_a_lock_that_the_main_task_forgets_is_freed_when_the_loop_ends(run, rlock, client):
    run(rlock().acquire())
    assert not client.exists(LOCK)


def test_waiters_of_all_kinds_are_served_in_the_order_of_their_arrival(run, rlock, client):
    """Semantics 12: first come first served, threads and coroutines in one line."""
    served = []

    def in_thread():
        with celery_rlock.RLock("k"):
            served.append("thread")

    async def in_task(name):
        async with rlock():
            served.append(name)

    async def in_line(count):
        await until(lambda: client.zcard(f"{LOCK}:waiters") == count, f"{count} waiters")

    async def main():
        async with rlock():
            tasks = [asyncio.create_task(in_task("first"))]
            await in_line(1)
            thread = threading.Thread(target=in_thread)
            thread.start()
            await in_line(2)
            tasks.append(asyncio.create_task(in_task("last")))
            await in_line(3)
        await asyncio.gather(*tasks)
        await asyncio.to_thread(thread.join)
        assert served == ["first", "thread", "last"]

    run(main())


def test_waiting_does_not_poll_busily(run, rlock, client):
    async def main():
        async with rlock():
            client.config_resetstat()
            assert await asyncio.create_task(rlock().acquire(timeout=1)) is False
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] < 15

    run(main())


def test_a_late_release_never_frees_a_successor(run, rlock, client):
    """Semantics 3."""

    async def main():
        late, tokens = rlock(ttl=1), []
        await late.acquire()
        client.delete(LOCK)
        holding, done = asyncio.Event(), asyncio.Event()

        async def successor():
            async with rlock(ttl=5) as lock:
                tokens.append(lock.token)
                holding.set()
                await done.wait()

        task = asyncio.create_task(successor())
        await holding.wait()
        await asyncio.sleep(1.1)
        with pytest.raises(LockNotHeld):
            await late.release()
        assert client.hget(LOCK, "@token") == str(tokens[0]).encode()
        done.set()
        await task

    run(main())


def test_many_locks_are_renewed_in_one_round_trip(run, rlock, monkeypatch):
    """Semantics 7: renewal every third of the lease, in batches."""
    rounds = []
    send = AsyncRedisLockServer._pipeline

    async def counted(self, server, commands):
        rounds.append(len(commands))
        return await send(self, server, commands)

    monkeypatch.setattr(AsyncRedisLockServer, "_pipeline", counted)

    async def main():
        locks = [rlock(f"key-{number}", ttl=0.9) for number in range(20)]
        for lock in locks:
            await lock.acquire()
        await asyncio.sleep(1.5)
        assert all(lock.held for lock in locks)
        assert all([await lock.owned() for lock in locks])
        assert max(rounds) == 20
        assert len(rounds) < 20
        for lock in locks:
            await lock.release()

    run(main())


def test_a_lock_that_is_taken_away_is_lost(run, rlock, client):
    """Semantics 8: lost is told."""

    async def main():
        lock = rlock(ttl=0.6)
        with pytest.raises(LockNotHeld):
            async with lock:
                client.delete(LOCK)
                await until(lambda: lock.lost, "the renewal to notice")
                assert not lock.held
                with pytest.raises(LockLost):
                    lock.ensure()
                with pytest.raises(LockLost):
                    await lock.acquire()

    run(main())


def test_extend_makes_the_lease_last(run, rlock, client):
    async def main():
        async with rlock(ttl=0.6) as lock:
            await lock.extend(60)
            await asyncio.sleep(0.5)
            assert client.pttl(LOCK) > 50_000
        with pytest.raises(LockNotHeld):
            await lock.extend(5)

    run(main())


def test_the_users_own_client_is_used_and_stays_open(run, rlock, server, client):
    async def main():
        async with redis.asyncio.Redis(port=server.port, client_name="mine") as mine:
            async with RLock("k", client=mine), RLock("k", client=mine) as lock:
                assert lock.depth == 2
                assert [entry["name"] for entry in client.client_list()].count("mine") == 1
            await mine.ping()

    run(main())


def test_a_task_enters_again_through_another_client_of_the_same_server(run, rlock, server, client):
    """Semantics 2: also through the user's own client."""

    async def main():
        async with redis.asyncio.Redis(host="localhost", port=server.port) as mine:
            async with rlock() as outer:
                async with RLock("k", client=mine) as inner:
                    assert (inner.depth, inner.token) == (2, outer.token)
                assert await outer.owned()
                assert outer.depth == 1
            assert not client.exists(LOCK)
            async with RLock("k", client=mine) as inner:
                assert (inner.depth, outer.depth) == (1, 0)

    run(main())


def test_each_loop_has_connections_of_its_own_and_closes_them(run, rlock, client):
    lock = rlock()

    async def main():
        async with lock:
            return [entry["name"] for entry in client.client_list()].count("celery-rlock")

    before = [entry["name"] for entry in client.client_list()].count("celery-rlock")
    assert run(main()) == before + 1
    assert run(main()) == before + 1
    assert [entry["name"] for entry in client.client_list()].count("celery-rlock") == before


def test_the_blocking_lock_refuses_an_event_loop_and_names_this_one(run, rlock):
    async def main():
        with pytest.raises(ConfigurationError, match=r"celery_rlock\.asyncio\.RLock"):
            celery_rlock.RLock("k").acquire()
        with pytest.raises(ConfigurationError), celery_rlock.RLock("k"):
            pass
        assert await asyncio.to_thread(in_thread)

    def in_thread():
        with celery_rlock.RLock("k") as lock:
            return lock.held

    run(main())


def test_a_coroutine_of_a_celery_task_does_not_wait_for_that_task(run, rlock):
    """`asyncio.run` inside a task that holds the key would wait for ever."""
    execution = Execution(Owner("w", "1", "task"))

    async def main():
        with pytest.raises(ConfigurationError, match="inside the lock already"):
            await rlock().acquire()
        assert await rlock("other").acquire()
        await rlock("other").release()

    with running(execution), celery_rlock.RLock("k"):
        run(main())


def test_a_server_that_is_not_there_is_unavailable_soon(run, app_on):
    app_on(f"redis://:secret@127.0.0.1:{free_port()}/0")

    async def main():
        with pytest.raises(LockUnavailable, match="'k' is unavailable: ConnectionError") as error:
            await RLock("k").acquire()
        assert "secret" not in str(error.value)

    run(main())


def test_a_silent_server_does_not_hold_up_a_bounded_acquire(run, app_on, proxy, client):
    app_on(proxy.url)

    async def main():
        async with RLock("k"):
            pass
        proxy.freeze()
        start = asyncio.get_running_loop().time()
        with pytest.raises(LockUnavailable, match="did not answer"):
            await RLock("k").acquire(timeout=0.1)
        took = asyncio.get_running_loop().time() - start
        assert took < 0.9  # less than the socket timeout of a second
        proxy.thaw()
        await asyncio.sleep(0.2)
        await until(lambda: not client.exists(LOCK), "the request that arrived late to be undone")

    run(main())


def test_the_loop_goes_on_while_the_server_is_silent(run, app_on, proxy):
    app_on(proxy.url)

    async def main():
        async with RLock("k"):
            pass
        proxy.freeze()
        waiting = asyncio.create_task(RLock("k").acquire())
        loop = asyncio.get_running_loop()
        gaps, last = [], loop.time()
        while not waiting.done():
            await asyncio.sleep(0.005)
            gaps.append(loop.time() - last)
            last = loop.time()
        assert len(gaps) > 20
        assert isinstance(waiting.exception(), LockUnavailable)
        proxy.thaw()

    run(main())


@pytest.mark.parametrize("verb", ["release", "acquire"])
def test_a_lost_reply_changes_nothing(run, app_on, proxy, client, verb):
    """Semantics 4: idempotent under lost replies."""
    app_on(proxy.url)

    async def main():
        async with RLock("k"):
            pass
        if verb == "acquire":
            proxy.lose_reply(lambda command: command[0] == b"EVALSHA")
        async with RLock("k") as lock:
            assert await lock.owned()
            if verb == "release":
                proxy.lose_reply(lambda command: command[0] == b"EVALSHA")
        assert not client.exists(LOCK)

    run(main())


def test_killed_connections_are_replaced(run, rlock, client):
    async def main():
        async with rlock(ttl=0.9) as lock:
            waiting = asyncio.create_task(rlock().acquire(timeout=30))
            for _ in range(5):
                for kind in ("normal", "pubsub"):
                    client.client_kill_filter(_type=kind, skipme=True)
                await asyncio.sleep(0.2)
            assert lock.held
        assert await waiting is True

    run(main())


def test_a_restarted_server_has_lost_the_lock_and_serves_the_next(run, app_on):
    from tests.support.servers import DEFAULT_KIND, Server  # noqa: PLC0415

    with Server.start(DEFAULT_KIND) as server:
        app_on(server.url)

        async def main():
            lock = RLock("k", ttl=2)
            with pytest.raises(LockNotHeld):
                async with lock:
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.started)
                    await until(lambda: lock.lost, "the lost lock")
            async with RLock("k") as after:
                assert await after.owned()

        run(main())


def test_locking_that_is_switched_off_asks_no_server(run, app_on):
    app_on(f"redis://127.0.0.1:{free_port()}/0", rlock_enabled=False)

    async def main():
        async with RLock("k") as lock, RLock("k"):
            assert lock.held
            assert await lock.owned()

    run(main())


def test_a_block_with_a_timeout_ends_with_lock_busy(run, rlock):
    async def main():
        async with rlock() as lock:

            async def enter(timeout):
                async with rlock(timeout=timeout):
                    pass

            for timeout in (0, 0.05):
                with pytest.raises(LockBusy, match="'k' is held by") as error:
                    await asyncio.create_task(enter(timeout))
                assert (error.value.holder, error.value.state) == (lock.owner, "held")
            assert await asyncio.create_task(rlock(timeout=0).acquire()) is False
            assert await asyncio.create_task(rlock(timeout=60).acquire(timeout=0)) is False
        async with rlock(timeout=0):
            pass

    run(main())


@pytest.mark.parametrize("ttl", [0.5, 2])
def test_max_hold_is_the_end_of_the_lease(run, rlock, client, ttl):
    def server_time():
        seconds, micros = client.time()
        return seconds + micros / 1e6

    async def main():
        lock = rlock(ttl=ttl, max_hold=2)
        await lock.acquire()
        # A request may take until its timeout to arrive, and its lease begins then.
        latest = server_time() + 2 + 1
        while not lock.lost:
            assert server_time() + max(0, client.pttl(LOCK)) / 1000 <= latest
            await asyncio.sleep(0.05)
        assert server_time() >= latest - 1.5
        with pytest.raises(LockNotHeld):
            await lock.release()
        async with rlock(ttl=0.5) as lock:  # it counted for its own ownership only
            await asyncio.sleep(1)
            assert lock.held

    run(main())


def test_bad_arguments_are_errors(run, rlock, app_on):
    """Semantics 16."""

    async def main():
        with pytest.raises(ValueError, match="non-negative"):
            await rlock().acquire(timeout=-1)
        with pytest.raises(TypeError, match="a number of seconds, not '5'"):
            rlock(timeout="5")
        with pytest.raises(ConfigurationError, match="seconds above 0"):
            rlock(ttl=0)
        with pytest.raises(ConfigurationError, match="max_hold must be a number of seconds above 0"):
            rlock(max_hold=0)
        with pytest.raises(ConfigurationError, match="non-empty"):
            await rlock("").acquire()
        with pytest.raises(LockLost, match="not held here"):
            rlock().ensure()
        app_on("redis://localhost", rlock_client="proj.client")
        with pytest.raises(ConfigurationError, match="client=…"):
            await RLock("k").acquire()

    run(main())


def test_no_more_tasks_than_the_limit_are_inside(run, rlock, client):
    """Semantics 1 and 17: also beside a thread that holds a place."""
    inside, most, slots = set(), 0, set()

    async def work():
        nonlocal most
        for _ in range(4):
            async with rlock(limit=4) as lock:
                assert lock.slot not in inside
                inside.add(lock.slot)
                slots.add(lock.slot)
                most = max(most, len(inside))
                await asyncio.sleep(0.005)
                inside.discard(lock.slot)

    async def main():
        await asyncio.gather(*(work() for _ in range(8)))

    with celery_rlock.RLock("k", limit=4) as lock:
        run(main())
        assert (most, slots | {lock.slot}) == (3, {0, 1, 2, 3})
    assert not client.exists(LOCK)


@pytest.mark.parametrize("limit", [0, -1, "2", True, None])
def test_a_limit_that_is_none_is_refused(rlock, limit):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="a lock's limit must be a whole number"):
        rlock(limit=limit)
