"""`RLock` for any code: the same locks as the tasks', with the app's server, prefix and ttl."""

from __future__ import annotations

from celery.app import app_or_default

from celery_rlock import settings
from celery_rlock.core.lock import DEFAULT_TTL, ReentrantLock
from celery_rlock.server.cluster import Client


class RLock(ReentrantLock):
    """A reentrant lock on `key` for every process that uses the same server: a `threading.RLock` for a fleet.

    In a task the lock belongs to the task's execution, elsewhere to this thread: only that may re-enter or
    release it. The lease of `ttl` seconds (default: the setting `rlock_ttl`) is renewed until the release,
    but not beyond `max_hold` seconds. When the holder's host dies, the lock is free after `ttl` seconds.
    Threads may share one object, also as the lock of a `threading.Condition`. `with` waits for `timeout`
    seconds at most, then it raises LockBusy; without it, as long as the lock is busy. With a `limit`, so many
    owners may hold the lock at once, each with a lease of its own. `client` is a redis-py client of your own;
    without it the lock uses the app's lock server.
    """

    def __init__(
        self,
        key: str,
        *,
        client: Client | None = None,
        ttl: float | None = None,
        timeout: float = -1,
        max_hold: float | None = None,
        limit: int = 1,
    ) -> None:
        app = app_or_default()
        super().__init__(
            key,
            lock_server=settings.server(app, client),
            ttl=app.conf.get("rlock_ttl", DEFAULT_TTL) if ttl is None else ttl,
            timeout=timeout,
            max_hold=max_hold,
            replicas=app.conf.get("rlock_replicas", 0),
            limit=limit,
        )
