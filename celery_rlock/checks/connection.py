"""Whether the lock's server answers."""

from __future__ import annotations

from collections.abc import Iterator

from redis.exceptions import AuthenticationError, NoPermissionError

from celery_rlock import settings
from celery_rlock.checks.finding import Finding, NotChecked, error, ok
from celery_rlock.checks.setup import Setup
from celery_rlock.core.url import hide_password
from celery_rlock.errors import ConfigurationError


def look_at_connection(setup: Setup) -> Iterator[Finding]:
    if not settings.enabled(setup.app):
        raise NotChecked("rlock_enabled is False")
    where = _where(setup)
    trouble = setup.trouble
    if trouble is None:
        yield ok(f"{where} answers ({', '.join(primary.address for primary in setup.primaries)})")
    else:
        yield error(f"{where} cannot be used: {type(trouble).__name__}: {trouble}", _repair(trouble))


def _where(setup: Setup) -> str:
    if setup.app.conf.get("rlock_client") is not None:
        return "what rlock_client connects to"
    try:
        return hide_password(settings.lock_url(setup.app))
    except ConfigurationError:
        return "the lock's server"


def _repair(trouble: Exception) -> str:
    if isinstance(trouble, ConfigurationError):
        return "correct the setting that it names"
    if isinstance(trouble, AuthenticationError):
        return "correct user and password in rlock_url"
    if isinstance(trouble, NoPermissionError):
        return "grant the lock's user +client|setname, and +select for a database other than 0"
    return (
        "start the server, let this host reach it, or correct rlock_url; until then lock_unavailable decides"
    )
