"""A waiter in a worker whose processes are all busy does not keep a free lock idle."""

from __future__ import annotations

import time

from celery_rlock.server.lock_server import WOKEN_TRUST_MS
from tests.support.processes import wait_until
from tests.worker.awaiting import SOON

WAITERS = 12


def test_a_waiter_in_a_busy_worker_passes_its_turn_to_a_waiter_in_an_idle_one(
    start_fleet, send, name, queue, hold, waiters, tell, starts, records
):
    """Semantics 12: else each waiter of the busy worker would keep the lock idle for a second."""
    other = f"{name}-other"
    with start_fleet(1, queues=[f"{queue}-busy"]), start_fleet(1, queues=[f"{queue}-idle"]):
        with hold(name):
            sent = [send("work", name, 0, queue=f"{queue}-busy") for _ in range(WAITERS)]
            waiters.await_count(name, WAITERS)
            last = send("work", name, 0, queue=f"{queue}-idle")
            waiters.await_count(name, WAITERS + 1)
            blocking = send("until_told", other, queue=f"{queue}-busy")
            wait_until(lambda: records(other), timeout=SOON, what="the busy worker to be busy")
        released = time.monotonic()
        wait_until(lambda: starts(name), timeout=SOON, what="a run")
        idle = time.monotonic() - released
        assert starts(name)[0] == last.id
        assert idle < WAITERS * WOKEN_TRUST_MS / 1000 / 2
        tell(other)
        blocking.get(timeout=SOON)
        for task in [*sent, last]:
            task.get(timeout=2 * SOON)
    assert len(starts(name)) == WAITERS + 1
