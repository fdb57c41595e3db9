"""The background thread that renews leases and watches deadlines: when it wakes."""

from __future__ import annotations

import math
import time

from celery_rlock.core.background import Loop
from celery_rlock.server.clock import now
from tests.support.processes import wait_until


def test_short_locks_do_not_wake_a_thread_that_is_planned_early_enough():
    """Each wake-up of the renewing thread cost a short task about 60 µs."""
    ticks = []
    loop = Loop("test", lambda: ticks.append(now()) or math.inf)
    for _ in range(200):
        loop.call_by(now() + 600)
        time.sleep(0.001)  # the thread could tick each time
    assert 1 <= len(ticks) <= 3


def test_a_thread_that_sleeps_too_long_is_woken():
    ticks = []
    loop = Loop("test", lambda: ticks.append(now()) or math.inf)
    for _ in range(5):
        loop.call_by(now() + 600)
        time.sleep(0.01)
    before = len(ticks)
    loop.call_by(now() + 0.05)
    wait_until(lambda: len(ticks) > before, timeout=20, what="the earlier tick")


def test_an_idle_thread_stops_waking():
    ticks = []
    loop = Loop("test", lambda: ticks.append(now()) or math.inf)
    loop.call_by(now() + 0.01)
    time.sleep(0.5)
    assert 1 <= len(ticks) <= 3
