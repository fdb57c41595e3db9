"""`RLock` with the current app's server, prefix and ttl, so that it is the same lock as the tasks'."""

from __future__ import annotations

from celery.app import app_or_default

from celery_rlock import settings
from celery_rlock.core import lock as core
from celery_rlock.core.cluster import Client


class RLock(core.RLock):
    __doc__ = core.RLock.__doc__

    def __init__(self, key: str, *, client: Client | None = None, ttl: float | None = None) -> None:
        app = app_or_default()
        super().__init__(
            key,
            scripts=settings.server(app, client),
            ttl=app.conf.get("rlock_ttl", core.DEFAULT_TTL) if ttl is None else ttl,
        )
