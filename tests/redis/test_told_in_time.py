"""A run that is cut off is told before another may have its lock, whatever its process is waiting for."""

from __future__ import annotations

import threading
import time

from celery_rlock.core.client import connect
from celery_rlock.core.lease import Lease
from celery_rlock.core.name import Owner
from celery_rlock.core.scripts import Scripts

TTL = 2.0
SOON = 0.5  # seconds, for a loaded machine; while a renewal waits for its answer it takes a second


def test_a_loss_is_told_at_the_deadline_also_while_a_renewal_waits_for_its_answer(proxy):
    """Semantics 7 and 8: a server that accepts everything and answers nothing."""
    scripts = Scripts(connect(proxy.url))
    lease = Lease(scripts, scripts.name("cut-off"), Owner("worker", "delivery", "task"))
    told_at: list[float] = []
    told = threading.Event()
    lease.on_lost.append(lambda _error: (told_at.append(time.monotonic()), told.set()))
    assert lease.enter(TTL) is None
    proxy.freeze()
    assert told.wait(30)
    assert told_at[0] - lease.deadline < SOON
