"""The lines of docs/coming-from.md that need a worker."""

from __future__ import annotations

import time
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise

from celery import states

from tests.support.processes import wait_until
from tests.worker.migration.bench import proves


@proves('once={"unlock_before_run": True}')
def the_start_frees_the_key(bench, ours):
    sync = bench.define(ours)
    first = sync.delay(1, 5)
    assert sync.delay(1, 5).id == first.id
    with bench.worker(ours) as worker:
        wait_until(lambda: not bench.locks(), timeout=20, what="the start")
        assert sync.delay(1, 5).id != first.id
        assert first.state == states.PENDING, worker.log


@proves('ONCE["settings"]["blocking"]')
def the_second_waits_for_its_turn(bench, ours):
    sync = bench.define(ours)
    results = [sync.delay(1, 0.5) for _ in range(3)]
    assert bench.published() == 3
    with bench.worker(ours):
        assert [result.get(timeout=30) for result in results] == [1, 1, 1]
        done = sorted(result.date_done for result in results)
    assert min((later - earlier).total_seconds() for earlier, later in pairwise(done)) > 0.4


@proves('ONCE["settings"]["blocking_timeout"]')
def who_waited_too_long_is_revoked(bench, ours):
    by_a = '@app.task(base=LockedTask, lock_from="publish", lock_key="sync:{a}")'
    sync = bench.define(by_a)
    with bench.worker(by_a, rlock_ttl=3):  # a waiter sees its expiry when the holder's lease would end
        first = sync.delay(1, 60)
        wait_until(
            lambda: not (bench.holder() or "queued:").startswith("queued:"), timeout=20, what="the run"
        )
        second = bench.evaluate(ours.replace("=30", "=2"), sync=sync)
        wait_until(lambda: second.state == states.RETRY, timeout=20, what="the second to wait")
        wait_until(lambda: second.state == states.REVOKED, timeout=20, what="the end of its patience")
        assert first.state == states.PENDING


@proves("lock_expiry=60, for runs that take too long")
def a_long_run_is_renewed_until_then(bench, ours):
    ours = ours.replace("=60", "=3")
    sync = bench.define(ours)
    sync.delay(1, 60)
    with bench.worker(ours, rlock_ttl=1):
        wait_until(
            lambda: not (bench.holder() or "queued:").startswith("queued:"), timeout=20, what="the run"
        )
        taken = time.monotonic()
        wait_until(lambda: not bench.locks(), timeout=20, what="the end of the lease")
        assert time.monotonic() - taken > 2
    assert sync.delay(1) is not None


@proves("lock_expiry=60, for one in a minute")
def it_stays_taken_after_the_run(bench, ours):
    sync = bench.define(ours)
    first = sync.delay(1)
    with bench.worker(ours):
        assert first.get(timeout=20) == 1
        wait_until(lambda: bench.holder() == f"rest:{first.id}", timeout=10, what="the rest")
    assert bench.lease() <= 60
    assert sync.delay(1).id == first.id


@proves("singleton_json_encoder_class")
def these_make_a_key(bench, ours):
    sync = bench.define()
    assert bench.evaluate(ours, sync=sync).id == bench.evaluate(ours, sync=sync).id
    for value in (date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=timezone.utc), Decimal("1.5")):
        assert sync.delay(value).id == sync.delay(value).id
    assert bench.published() == 4
    with bench.worker():
        wait_until(lambda: not bench.locks(), timeout=20, what="the runs to take their keys over")
