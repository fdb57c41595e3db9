"""A run that is cut off is told before another may have its lock, whatever its process is waiting for."""

from __future__ import annotations

import threading

from celery_rlock.core.execution import Execution
from celery_rlock.server.client import connect
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner

TTL = 2.0
SOON = 0.5  # seconds, for a loaded machine; while a renewal waits for its answer it takes a second


def test_a_loss_is_told_at_the_deadline_also_while_a_renewal_waits_for_its_answer(proxy):
    """Semantics 7 and 8: a server that accepts everything and answers nothing."""
    lock_server = RedisLockServer(connect(proxy.url))
    execution = Execution(Owner("worker", "delivery", "task"))
    lease = execution.lease(lock_server, lock_server.redis_keys("cut-off"))
    told_at: list[float] = []
    told = threading.Event()
    assert lease.enter(TTL) is None
    lease.on_lost(lambda _error: (told_at.append(now()), told.set()))
    proxy.freeze()
    assert told.wait(30)
    assert told_at[0] - lease.deadline < SOON
