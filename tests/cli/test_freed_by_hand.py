"""Every way to free a key by hand that the docs name wakes a task that waits in a worker."""

from __future__ import annotations

import pytest
from celery import states

from celery_rlock.running.reschedule import CAN_BE_WOKEN
from tests.cli.commands_app import make_app
from tests.cli.run_commands import PROJ, WITHIN, Locks, environment, run
from tests.support.processes import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.skipif(not CAN_BE_WOKEN, reason="a waiting task is woken since Celery 5.7")

#: Far longer than the tests wait: a task that is not woken does not look by itself in time.
LONG = 600


@pytest.fixture(scope="module")
def app(private_server):
    return make_app(private_server.url)


@pytest.fixture(scope="module")
def worker(private_server):
    env = environment(private_server.url, rlock_backoff=LONG, rlock_backoff_max=LONG, rlock_jitter=False)
    with Worker.start(PROJ, concurrency=1, env=env) as worker:
        yield worker


def by_command(app, name):
    return run(app, "release", name, "--yes").exit_code == 0


def by_lock_of(app, name):
    return app.tasks["proj.long"].lock_of(name).release()


@pytest.mark.parametrize("free", [by_command, by_lock_of])
@pytest.mark.parametrize("kind", ["held", "queued", "resting"])
def test_it_wakes_a_task_that_waits_in_a_worker(app, private_server, worker, name, free, kind):
    locks = Locks(private_server.url)
    delivery = {"held": "d1", "queued": "queued", "resting": "rest"}[kind]
    locks.hold(name, delivery=delivery, task_id="holder", ttl=LONG)
    waiter = app.tasks["proj.long"].apply_async((name,))
    locks.lock_server.client.set(f"told:{waiter.id}", 1, ex=LONG)
    wait_until(lambda: locks.is_waiting(name, waiter.id), timeout=WITHIN, what="the waiter")
    assert free(app, name)
    wait_until(lambda: waiter.state == states.SUCCESS, timeout=WITHIN, what="the waiter to run")


@pytest.mark.parametrize("free", [by_command, by_lock_of])
def test_it_wakes_the_waiter_of_a_lock_that_was_deleted_in_redis(app, private_server, worker, name, free):
    """A DEL wakes no waiter; what is found free afterwards is still woken."""
    locks = Locks(private_server.url)
    locks.hold(name, task_id="holder", ttl=LONG)
    waiter = app.tasks["proj.long"].apply_async((name,))
    locks.lock_server.client.set(f"told:{waiter.id}", 1, ex=LONG)
    wait_until(lambda: locks.is_waiting(name, waiter.id), timeout=WITHIN, what="the waiter")
    locks.lock_server.client.delete(locks.lock_server.redis_keys(name).lock)
    assert not free(app, name)
    wait_until(lambda: waiter.state == states.SUCCESS, timeout=WITHIN, what="the waiter to run")


def test_the_command_tells_of_the_waiter_of_a_free_lock(app, private_server, name):
    locks = Locks(private_server.url)
    locks.add_waiters(name, "waiter")
    result = run(app, "release", name, "--yes")
    assert result.exit_code == 1
    assert f"the lock {name!r} is free; 1 waiter, the first is woken" in result.stderr
