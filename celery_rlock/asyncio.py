"""`RLock` for coroutines: the same locks as the tasks', with the app's server, prefix and ttl."""

from __future__ import annotations

from celery import Celery
from celery.app import app_or_default

from celery_rlock import settings
from celery_rlock.aio.async_client import AsyncClient, async_connect
from celery_rlock.aio.async_lock import AsyncReentrantLock
from celery_rlock.aio.async_server import (
    AsyncLockServer,
    AsyncRedisLockServer,
    AsyncSwitchedOff,
    lock_server_of,
)
from celery_rlock.aio.event_loop import running_loop
from celery_rlock.core.lock import DEFAULT_TTL
from celery_rlock.server.client import check_client

__all__ = ["RLock"]


class RLock(AsyncReentrantLock):
    """A reentrant lock on `key`, owned by the running asyncio task: `async with RLock("account:7"):`.

    Only that task may re-enter or release the lock. A task that it starts is another owner, and waits. The
    lease of `ttl` seconds (default: the setting `rlock_ttl`) is renewed until the release, but not beyond
    `max_hold` seconds. When the task ends without a release, the lock is freed at once; when its host dies,
    after `ttl` seconds. Tasks may share one object. `async with` waits for `timeout` seconds at most, then it
    raises LockBusy; without it, as long as the lock is busy. With a `limit`, so many owners may hold the lock
    at once. `client` is a `redis.asyncio` client of your own; without it each event loop has a client of its
    own for the app's lock server.
    """

    def __init__(
        self,
        key: str,
        *,
        client: AsyncClient | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        max_hold: float | None = None,
        limit: int = 1,
    ) -> None:
        app = app_or_default()
        settings.prefix(app)  # a wrong one is an error here
        if client is not None:
            check_client(client, of_asyncio=True)
        super().__init__(
            key,
            lock_server=lambda: _server(app, client),
            ttl=app.conf.get("rlock_ttl", DEFAULT_TTL) if ttl is None else ttl,
            timeout=timeout,
            max_hold=max_hold,
            replicas=app.conf.get("rlock_replicas", 0),
            limit=limit,
        )


def _server(app: Celery, client: AsyncClient | None) -> AsyncLockServer:
    """The lock server for the running loop: connections never cross loops."""
    loop = running_loop()
    if not settings.enabled(app):
        return AsyncSwitchedOff(loop, settings.prefix(app))
    if client is not None:
        return lock_server_of(loop, client, settings.prefix(app))
    found: AsyncRedisLockServer | None = loop.servers.get(app)
    if found is None:
        made = async_connect(*settings.asyncio_url(app))
        loop.close_at_end(made.aclose)
        found = loop.servers[app] = AsyncRedisLockServer(loop, made, settings.prefix(app))
    return found
