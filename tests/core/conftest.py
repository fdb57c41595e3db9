"""The lock without Celery, on real servers."""

from __future__ import annotations

import pytest

from celery_rlock.core.client import connect
from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts


@pytest.fixture
def scripts(each_server):
    return Scripts(connect(each_server.url))


@pytest.fixture
def redis(scripts):
    return scripts.client


@pytest.fixture
def rlock(scripts):
    """Makes locks on every kind of server."""

    def make(key="k", **options):
        return RLock(key, scripts=scripts, **options)

    return make
