"""The lines of docs/coming-from.md that need no worker."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_rlock import ConfigurationError, DuplicateTask, RLockError
from tests.support.clients import bare_client
from tests.worker.migration.bench import proves


@proves("base=QueueOnce", "raise_on_duplicate=True", "singleton_raise_on_duplicate")
def a_duplicate_raises(bench, ours):
    if ours.startswith("@"):
        sync = bench.define(ours)
    else:
        bench.execute(ours)
        sync = bench.define()
    first = sync.delay(1)
    with pytest.raises(DuplicateTask) as error:
        sync.delay(a=1)
    assert error.value.task_id == first.id
    sync.delay(2)
    assert bench.published() == 2


@proves('once={"graceful": True}', "base=Singleton")
def a_duplicate_gets_the_first_ones_result(bench, ours):
    sync = bench.define(ours)
    assert sync.delay(1).id == sync.delay(1).id != sync.delay(2).id
    assert bench.published() == 2


@proves('apply_async(once={"graceful": True})')
def a_call_chooses(bench, ours):
    sync = bench.define('@app.task(base=LockedTask, lock_from="publish", lock_duplicate="raise")')
    first = sync.delay(1)
    assert bench.evaluate(ours, sync=sync).id == first.id
    with pytest.raises(DuplicateTask):
        sync.delay(1)


@proves('once={"keys": ["a"]}', 'unique_on=["a"]')
def only_a_counts(bench, ours):
    sync = bench.define(ours)
    assert sync.delay(1, 1).id == sync.delay(1, 2).id != sync.delay(2, 1).id


@proves('once={"keys": []}')
def no_argument_counts(bench, ours):
    sync = bench.define(ours)
    assert sync.delay(1).id == sync.delay(2).id


@proves('once={"timeout": 36000}', "lock_expiry=60, for locks that are left over")
def the_queued_lock_has_a_bound(bench, ours):
    bound = int(ours.rpartition("=")[2].rstrip(")"))
    bench.define(ours).apply_async((1,), countdown=1000)
    assert bound + 900 < bench.lease() <= bound + 1000


@proves('apply_async(once={"timeout": 60})')
def a_call_chooses_the_bound(bench, ours):
    bench.evaluate(ours, sync=bench.define())
    assert bench.lease() <= 60


@proves('ONCE["settings"]["default_timeout"]', "singleton_lock_expiry")
def the_bound_has_a_default(bench, ours):
    bound = bench.app.conf.get("rlock_queue_ttl", 3600)
    bench.execute(ours)
    assert bench.app.conf.rlock_queue_ttl != bound
    bench.define().delay(1)
    assert bench.app.conf.rlock_queue_ttl - 50 < bench.lease() <= bench.app.conf.rlock_queue_ttl


@proves('ONCE["backend"] = "celery_once.backends.Redis"', 'ONCE["settings"]["url"]', "singleton_backend_url")
def the_locks_are_there(bench, ours):
    bench.execute(ours)
    bench.define().delay(1)
    assert bench.locks() == []
    assert bench.locks_at(bench.other_url)


@proves('ONCE["backend"] = "celery_once.backends.File"')
def without_redis_there_is_no_lock(bench, ours):
    bench.app = Celery("migrated", broker="memory://", set_as_current=False)
    with pytest.raises(ConfigurationError, match="no Redis for the locks"):
        bench.define().delay(1)
    bench.app = Celery("migrated", broker="memory://", set_as_current=False)
    the_locks_are_there(bench, ours)


@proves("except AlreadyQueued", "except DuplicateTaskError")
def it_is_the_error_to_catch(bench, ours):
    sync = bench.define('@app.task(base=LockedTask, lock_from="publish", lock_duplicate="raise")')
    sync.delay(1)
    bench.execute(f"try:\n    sync.delay(1)\n{ours}:\n    caught.append(1)", sync=sync, caught=(caught := []))
    assert caught
    assert issubclass(DuplicateTask, RLockError)


@proves("AlreadyQueued.countdown", "DuplicateTaskError.task_id")
def the_error_names_the_task(bench, ours):
    sync = bench.define('@app.task(base=LockedTask, lock_from="publish", lock_duplicate="raise")')
    first = sync.delay(1)
    with pytest.raises(DuplicateTask) as error:
        sync.delay(1)
    assert bench.evaluate(ours, sync=sync, error=error.value) == first


@proves("singleton_backend_class, singleton_backend_kwargs")
def the_client_is_the_users(bench, ours):
    made = []

    def make_client():
        made.append(bare_client(bench.other_url))
        return made[0]

    bench.execute(ours, make_client=make_client)
    bench.define().delay(1)
    assert len(made) == 1
    assert bench.locks() == []
    assert bench.locks_at(bench.other_url)


@proves("singleton_key_prefix")
def every_key_begins_so(bench, ours):
    bench.execute(ours)
    bench.define().delay(1)
    assert bench.locks() == []
    assert len(bench.locks("proj:{*")) == 1


@proves("singleton_json_encoder_class, for what is yours")
def the_key_is_made_by_the_user(bench, ours):
    sync = bench.define(ours)
    assert sync.delay({"id": 1, "x": 1}).id == sync.delay({"id": 1, "x": 2}).id != sync.delay({"id": 2}).id


@proves("clear_locks(app)", "sync.release_lock(task_args=(1,))")
def a_key_is_freed_by_hand(bench, ours):
    sync = bench.define('@app.task(base=LockedTask, lock_from="publish", lock_key="sync:{a}")')
    first = sync.delay(1)
    bench.execute(ours, sync=sync)
    assert bench.locks() == []
    assert sync.delay(1).id != first.id
