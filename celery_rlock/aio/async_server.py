"""The lock server for coroutines: the verbs that an RLock needs, on `redis.asyncio`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from redis.asyncio import RedisCluster
from redis.asyncio.cluster import PipelineCommand
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_rlock.aio.async_client import AsyncClient, primaries_of
from celery_rlock.aio.async_cluster import node_to_answer, refuse_old_primary
from celery_rlock.aio.async_sentinel import AsyncSentinelRedis
from celery_rlock.aio.async_wakeups import AsyncWakeups
from celery_rlock.aio.event_loop import RunningLoop
from celery_rlock.errors import LockUnavailable, RLockError
from celery_rlock.server.clock import clock_of, now
from celery_rlock.server.failures import FAILURES, brief, translated
from celery_rlock.server.lock_server import (
    ANY_SILENCE,
    BROKEN,
    MOST_TRIES,
    MOST_WAKES,
    Renewal,
    acquire_answer,
    acquire_arguments,
    acquire_forms,
    busy_line,
    keys_of,
    release_call,
    renew_calls,
    token_of,
    wake_call,
)
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import AcquireReply, Busy, Gone, Place, Release, ReleaseReply, Taken
from celery_rlock.server.script import Script

_RELEASE, _RENEW = map(Script.load, ("release", "renew"))

#: How many requests are under way at once, and the connections of a small pool that are left to others.
_MOST_REQUESTS, _FOR_OTHERS = 10, 5

T = TypeVar("T")
_MOVING = (MovedError, AskError, TryAgainError)


class AsyncLockServer(Protocol):
    """Where locks are kept, for coroutines. The verbs are those of `server.lock_server.LockServer`."""

    loop: RunningLoop

    @property
    def identity(self) -> Hashable: ...

    @property
    def patience(self) -> float: ...

    @property
    def wakeups(self) -> AsyncWakeups: ...

    def redis_keys(self, key: str) -> RedisKeys: ...

    async def acquire(
        self,
        redis_keys: RedisKeys,
        owner: Owner,
        depth: int,
        ttl: float,
        *,
        attempt: str,
        replicas: int = 0,
        place: Place | None = None,
        limit: int = 1,
    ) -> Taken | Busy | Gone: ...

    async def release(self, redis_keys: RedisKeys, owner: Owner, release: Release) -> ReleaseReply: ...

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool | Exception]: ...

    async def give_up(self, place: Place) -> None: ...

    async def token(self, redis_keys: RedisKeys, owner: Owner) -> int: ...

    async def locked(self, redis_keys: RedisKeys) -> bool: ...


class AsyncRedisLockServer:
    """The lock server on Redis or Valkey: one server, Sentinel or Cluster. It belongs to one event loop.

    A verb whose connection broke is sent once more. Callers run the verbs so that no cancellation interrupts
    them: see `event_loop.outcome`.
    """

    def __init__(self, loop: RunningLoop, client: AsyncClient, prefix: str) -> None:
        self.loop, self.client, self.prefix = loop, client, prefix
        self._clock = clock_of(client)
        pool = getattr(client, "connection_pool", None)
        # With a limit of our own, coroutines wait for a connection, where redis-py's pools raise an error. A
        # hundred new connections at once would take longer than their timeout on a busy machine.
        limit = (getattr(pool, "max_connections", None) or 2 * _MOST_REQUESTS) - _FOR_OTHERS
        self._slots = asyncio.Semaphore(min(max(1, limit), _MOST_REQUESTS))

    @property
    def identity(self) -> Hashable:
        return id(self.client)

    @property
    def patience(self) -> float:
        return self._clock.patience

    @property
    def wakeups(self) -> AsyncWakeups:
        channels = f"{self.prefix}wake:"
        found: AsyncWakeups | None = self.loop.wakeups.get((id(self.client), channels))
        if found is None:
            client = self.client
            found = AsyncWakeups(self.loop, lambda: primaries_of(client), channels, self._wake_later)
            self.loop.wakeups[id(self.client), channels] = found
        return found

    def redis_keys(self, key: str) -> RedisKeys:
        return RedisKeys.of(key, self.prefix)

    async def acquire(
        self,
        redis_keys: RedisKeys,
        owner: Owner,
        depth: int,
        ttl: float,
        *,
        attempt: str,
        replicas: int = 0,
        place: Place | None = None,
        limit: int = 1,
    ) -> Taken | Busy | Gone:
        forms = acquire_forms(depth, place, limit=limit)
        for _ in range(MOST_TRIES):
            sent = now()
            deadline = self._clock.deadline(sent)
            script, optional = forms[0]
            args = acquire_arguments(owner, ttl, "", attempt, deadline, optional)
            if replicas:
                status, time, *rest = await self._acquire_replicated(script, redis_keys, args, replicas)
            else:
                status, time, *rest = await self._run(script, redis_keys, keys_of(redis_keys), args)
            self._clock.learn(int(time), sent)
            answer = acquire_answer(redis_keys, status, time, rest, limit)
            if answer is not None:
                return answer
            if status == AcquireReply.OTHER_FORM:
                forms = forms[::-1]
            elif status == AcquireReply.LINE and not await self.wake(redis_keys):
                break
        return busy_line(redis_keys, int(time), limit)

    async def release(self, redis_keys: RedisKeys, owner: Owner, release: Release) -> ReleaseReply:
        keys, args = release_call(redis_keys, owner, release)
        try:
            try:
                reply = ReleaseReply(await self._eval(_RELEASE, keys, args))
            except ANY_SILENCE:
                reply = ReleaseReply(await self._eval(_RELEASE, keys, args))
                if reply in {ReleaseReply.FREE, ReleaseReply.NOT_OWNER}:
                    return ReleaseReply.RELEASED  # by the first try, whose reply was lost
        except FAILURES as error:
            raise LockUnavailable(redis_keys.key, brief(error)) from error
        if reply == ReleaseReply.WAKE_AGAIN:
            with suppress(RLockError):  # the lock is released; the waiters also look by themselves
                await self.wake(redis_keys)
            return ReleaseReply.RELEASED
        return reply

    async def wake(self, redis_keys: RedisKeys, instead_of: str = "") -> bool:
        keys, args = wake_call(redis_keys, instead_of)
        for _ in range(MOST_WAKES):
            if await self._run(_RELEASE, redis_keys, keys, args, ANY_SILENCE) != ReleaseReply.WAKE_AGAIN:
                return True
        return False

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool | Exception]:
        """In one round trip per server. A server that does not answer spoils only its own renewals."""
        calls = renew_calls(renewals)
        replies: list[Any] = [None] * len(calls)
        groups = await self._by_server([keys[0] for keys, _ in calls])
        requests = []
        for server, places in groups:
            wanted = max(renewals[place].replicas for place in places)
            requests.append(self._renew_at(server, [calls[place] for place in places], wanted))
        batches = await asyncio.gather(*requests, return_exceptions=True)
        for (_, places), batch in zip(groups, batches, strict=True):
            for number, place in enumerate(places):
                replies[place] = batch if isinstance(batch, BaseException) else batch[number]
        for place, (keys, args) in enumerate(calls):
            if isinstance(replies[place], _MOVING):
                try:
                    replies[place] = await self._eval(_RENEW, keys, args)
                except FAILURES as error:
                    replies[place] = error
        return [reply if isinstance(reply, Exception) else bool(reply) for reply in replies]

    async def give_up(self, place: Place) -> None:
        """Leave the line. If it was this waiter's turn, the next waiter is woken."""
        with translated(place.redis_keys):
            had_place = await self._send("ZREM", place.redis_keys.waiters, place.waiter)
        if not had_place:
            await self.wake(place.redis_keys, instead_of=place.waiter)

    async def token(self, redis_keys: RedisKeys, owner: Owner) -> int:
        with translated(redis_keys):
            return token_of(*await self._send("HMGET", redis_keys.lock, owner.field, "@token"))

    async def locked(self, redis_keys: RedisKeys) -> bool:
        with translated(redis_keys):
            return bool(await self._send("EXISTS", redis_keys.lock))

    def _wake_later(self, redis_keys: RedisKeys, instead_of: str) -> None:
        self.loop.do_later(
            f"wake the next waiter for lock {redis_keys.key!r}",
            lambda: self.wake(redis_keys, instead_of),
            give_up=now() + 1,
        )

    async def _send(self, *command: Any) -> Any:
        return await self._in_slot(self.client.execute_command, *command)

    async def _in_slot(self, request: Callable[..., Awaitable[T]], *args: Any) -> T:
        async with self._slots:
            try:
                return await request(*args)
            except (AttributeError, OSError) as error:
                # redis-py 8.1 closes connections of a Cluster while other coroutines use them.
                raise RedisConnectionError(f"the connection was closed: {error!r}") from error

    async def _eval(self, script: Script, keys: Sequence[str], args: Sequence[object]) -> Any:
        node, sent = node_to_answer(self.client, keys[0]), now()
        try:
            reply = await self._send("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            reply = await self._send("EVAL", script.source, len(keys), *keys, *args)
        await refuse_old_primary(self.client, node, keys[0], sent)
        return reply

    async def _run(
        self,
        script: Script,
        redis_keys: RedisKeys,
        keys: Sequence[str],
        args: Sequence[object],
        retry_on: tuple[type[RedisError], ...] = BROKEN,
    ) -> Any:
        with translated(redis_keys):
            try:
                return await self._eval(script, keys, args)
            except retry_on:
                return await self._eval(script, keys, args)

    async def _acquire_replicated(
        self, script: Script, redis_keys: RedisKeys, args: Sequence[object], replicas: int
    ) -> Any:
        keys = keys_of(redis_keys)
        with translated(redis_keys):
            try:
                reply, have_it = await self._with_wait(script, keys, args, replicas)
            except (*BROKEN, MovedError):
                reply, have_it = await self._with_wait(script, keys, args, replicas)
        if reply[0] == AcquireReply.TAKEN and have_it < replicas:
            reason = f"{have_it} of {replicas} replicas had it in time (lock_replicas)"
            raise LockUnavailable(redis_keys.key, reason)
        return reply

    async def _with_wait(
        self, script: Script, keys: Sequence[str], args: Sequence[object], replicas: int
    ) -> tuple[Any, int]:
        """WAIT counts only what its own connection has written, so both go over one connection."""
        ((server, _),) = await self._by_server([keys[0]])
        answers: list[Any] = []
        sent = now()
        for command in (("EVALSHA", script.sha), ("EVAL", script.source)):
            commands = [(*command, len(keys), *keys, *args), self._wait_command(replicas)]
            answers = await self._pipelined(server, commands)
            if not isinstance(answers[0], NoScriptError):
                break
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        await refuse_old_primary(self.client, server, keys[0], sent)
        return answers[0], int(answers[1])

    def _wait_command(self, replicas: int) -> tuple[object, ...]:
        """WAIT with half of an answer's time, so that it always answers in time."""
        return "WAIT", replicas, max(1, round(self.patience * 250))

    async def _renew_at(self, server: Any, calls: Sequence[tuple[Any, Any]], wanted: int) -> list[Any]:
        wait = [self._wait_command(wanted)] if wanted else []
        answers: list[Any] = []
        sent = now()
        for command in (("EVALSHA", _RENEW.sha), ("EVAL", _RENEW.source)):
            commands = [(*command, len(keys), *keys, *args) for keys, args in calls]
            answers = await self._pipelined(server, [*commands, *wait])
            if not any(isinstance(answer, NoScriptError) for answer in answers):
                break
        await refuse_old_primary(self.client, server, calls[0][0][0], sent)
        if not wanted:
            return answers
        *replies, have_it = answers
        if isinstance(have_it, Exception) or have_it < wanted:
            late: Exception = RedisError(f"{have_it} of {wanted} replicas had it in time (lock_replicas)")
            replies = [late if reply == 1 else reply for reply in replies]
        return replies

    async def _by_server(self, keys: Sequence[str]) -> list[tuple[Any, list[int]]]:
        """The servers with the indexes of their keys."""
        if not isinstance(self.client, RedisCluster):
            return [(self.client, list(range(len(keys))))]
        await self.client.initialize()
        groups: dict[str, tuple[Any, list[int]]] = {}
        for place, key in enumerate(keys):
            node = self.client.get_node_from_key(key)
            groups.setdefault(node.name if node else "", (node, []))[1].append(place)
        return list(groups.values())

    async def _pipelined(self, server: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._in_slot(self._pipeline, server, commands)

    async def _pipeline(self, server: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
        if isinstance(self.client, RedisCluster):
            if server is None:
                raise RedisError("no node of the Cluster serves this slot")
            queued = [PipelineCommand(number, *command) for number, command in enumerate(commands)]
            try:
                await server.execute_pipeline(queued)
            except ANY_SILENCE:
                with suppress(*FAILURES):
                    await self.client.nodes_manager.initialize()  # the slots may have another node now
                raise
            return [command.result for command in queued]
        primary, sent = None, now()
        if isinstance(server, AsyncSentinelRedis):
            primary = await server.trusted_primary()
        async with server.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
        if isinstance(server, AsyncSentinelRedis):
            await server.check(primary, sent)
        return answers


def lock_server_of(loop: RunningLoop, client: AsyncClient, prefix: str) -> AsyncRedisLockServer:
    """The lock server behind a client in this loop: one for all callers that use it at the same time."""
    found: AsyncRedisLockServer | None = loop.clients.get((id(client), prefix))
    if found is None:
        found = loop.clients[id(client), prefix] = AsyncRedisLockServer(loop, client, prefix)
    return found


class AsyncSwitchedOff:
    """The lock server of `rlock_enabled = False`: answers every verb with success."""

    patience = 0.0

    def __init__(self, loop: RunningLoop, prefix: str) -> None:
        self.loop, self.prefix = loop, prefix

    @property
    def identity(self) -> Hashable:
        return AsyncSwitchedOff

    @property
    def wakeups(self) -> AsyncWakeups:
        raise NotImplementedError  # no lock is ever busy

    def redis_keys(self, key: str) -> RedisKeys:
        return RedisKeys.of(key, self.prefix)

    async def acquire(self, *_: object, **__: object) -> Taken:
        return Taken(0)

    async def release(self, *_: object) -> ReleaseReply:
        return ReleaseReply.RELEASED

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool | Exception]:
        return [True for _ in renewals]

    async def give_up(self, place: Place) -> None:
        pass

    async def token(self, *_: object) -> int:
        return 0

    async def locked(self, *_: object) -> bool:
        return False
