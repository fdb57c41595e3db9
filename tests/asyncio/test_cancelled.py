"""A cancellation at any await leaves nothing behind."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis.asyncio

from celery_rlock.asyncio import RLock
from tests.asyncio.conftest import LOCK, until

TOO_MANY = 200


async def cancelled_after(steps, work):
    """Run the coroutine as a task, and cancel it when it has been resumed `steps` times. True if it ended."""

    class Counting:
        def __init__(self, inner):
            self.inner, self.left = inner, steps

        def __await__(self):
            iterator = self.inner.__await__()
            thrown = None
            while True:
                try:
                    waits_for = iterator.throw(thrown) if thrown else iterator.send(None)
                except StopIteration as stop:
                    return stop.value
                if self.left == 0:
                    asyncio.current_task().cancel()
                self.left -= 1
                thrown = None
                try:
                    yield waits_for
                except BaseException as error:
                    thrown = error

    async def counted():
        await Counting(work())

    task = asyncio.create_task(counted())
    await asyncio.wait({task})
    if task.cancelled():
        return False
    task.result()
    return True


async def is_clean(client, seconds=5):
    """Redis has nothing of the lock, within seconds."""
    await until(
        lambda: not client.exists(LOCK, f"{LOCK}:waiters", f"{LOCK}:woken"),
        "nothing of the lock in Redis",
        seconds,
    )


@pytest.mark.parametrize("own_client", [False, True], ids=["the-loops-client", "the-users-client"])
def test_at_every_await_of_a_free_lock(run, app, server, client, own_client):
    async def main():
        mine = redis.asyncio.Redis(port=server.port, protocol=3) if own_client else None

        async def work():
            async with RLock("k", client=mine) as lock:
                await lock.extend(5)
                async with RLock("k", client=mine):
                    assert lock.depth == 2
                await asyncio.sleep(0)

        for steps in range(TOO_MANY):
            has_ended = await cancelled_after(steps, work)
            await is_clean(client)
            if mine is not None:  # no connection has an unread reply
                assert await asyncio.gather(*(mine.echo(str(n)) for n in range(3))) == [b"0", b"1", b"2"]
            if has_ended:
                break
        assert 3 < steps < TOO_MANY
        if mine is not None:
            await mine.aclose()

    run(main())


def test_at_every_await_of_a_busy_lock(run, app, client):
    async def main():
        async def work():
            async with RLock("k"):
                pass

        async def behind():
            async with RLock("k"):
                return True

        for steps in range(TOO_MANY):
            async with RLock("k"):
                task = asyncio.create_task(cancelled_after(steps, work))
                await asyncio.sleep(0.02)
                next_one = asyncio.create_task(behind())
                await asyncio.sleep(0.02)
            has_ended = await task
            assert await next_one  # the turn was passed on
            await is_clean(client)
            if has_ended:
                break
        assert 3 < steps < TOO_MANY

    run(main())


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_a_waiter_that_leaves_gives_up_its_place(run, app, client, how):
    async def main():
        async with RLock("k"):
            waiting = asyncio.create_task(RLock("k").acquire(0.5 if how == "timed out" else None))
            await until(lambda: client.zcard(f"{LOCK}:waiters") == 1, "the waiter")
            if how == "cancelled":
                waiting.cancel()
            await until(lambda: client.zcard(f"{LOCK}:waiters") == 0, "an empty line")

    run(main())


def test_at_random_moments_under_contention(run, app, client):
    chance = random.Random(7)
    inside = []

    async def work():
        for _ in range(3):
            async with RLock("k", ttl=5):
                inside.append(1)
                try:
                    assert len(inside) == 1
                    await asyncio.sleep(chance.uniform(0, 0.003))
                finally:
                    inside.pop()

    async def main():
        tasks = [asyncio.create_task(work()) for _ in range(60)]
        for task in tasks:
            asyncio.get_running_loop().call_later(chance.uniform(0, 0.6), task.cancel)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [
            error for error in outcomes if error is not None and not isinstance(error, asyncio.CancelledError)
        ]
        assert not wrong
        assert any(isinstance(error, asyncio.CancelledError) for error in outcomes)
        await is_clean(client)
        assert await RLock("k").acquire(timeout=5)
        await RLock("k").release()

    run(main())


def test_when_the_whole_loop_ends(run, app, client):
    """`asyncio.run` cancels every task: those that hold the lock, and those that wait."""

    async def hold():
        async with RLock("k"):
            await asyncio.sleep(60)

    async def main():
        for _ in range(10):
            asyncio.get_running_loop().create_task(hold())
        await until(lambda: client.zcard(f"{LOCK}:waiters") == 9, "nine waiters")

    run(main())
    assert not client.exists(LOCK)
    assert client.zcard(f"{LOCK}:waiters") == 0


def test_renewal_goes_on_when_all_tasks_were_cancelled(run, app, client):
    """A signal handler often cancels all tasks; one of them may still clean up under the lock."""

    async def main():
        mine = asyncio.all_tasks()
        async with RLock("k", ttl=3) as lock:
            for _ in range(6):
                for task in asyncio.all_tasks() - mine:
                    task.cancel()
                await asyncio.sleep(0.2)
            await asyncio.sleep(3)
            assert lock.held
            assert await lock.owned()

    run(main())
