"""Several clients of one server are one place for locks."""

from __future__ import annotations

import threading
import time

import pytest
import redis
from celery import Celery

from celery_rlock import LockedTask
from tests.attacks.attack import Locks, current, taken_by_another, threads
from tests.support.processes import free_port

HOSTS = ["127.0.0.1", "localhost"]


@pytest.fixture
def task(locks):
    """A locked task of key "k" that calls its argument inside the lock."""

    @locks.app.task(base=LockedTask, lock_key="k", bind=True)
    def task(self, inside):
        return inside(self.lock)

    return task


@pytest.mark.parametrize("host", HOSTS)
def test_a_users_own_client_re_enters_the_tasks_lock(server, locks, task, host):
    """Point 7: identity is the server and the database, not the Python object."""
    own = redis.Redis(host=host, port=server.port)

    def inside(task_lock):
        inner = locks("k", client=own)
        with inner:
            assert (inner.depth, inner.token) == (2, task_lock.token)
        assert task_lock.held
        assert taken_by_another(locks("k")) is False
        assert inner.owned()
        return "done"

    assert task(inside) == "done"
    assert taken_by_another(locks("k")) is True


def test_two_clients_outside_of_tasks_share_the_threads_lock(server, locks):
    """Point 7."""
    first, second = (redis.Redis.from_url(server.url) for _ in range(2))
    outer, inner = locks("k", client=first), locks("k", client=second)
    with outer:
        with inner:
            assert (outer.depth, inner.depth) == (2, 2)
        assert outer.owned()
        assert taken_by_another(locks("k")) is False
    assert taken_by_another(locks("k")) is True


def test_a_release_through_another_client_counts(server, locks):
    """Point 7: two releases for two acquires, whichever object they go through."""
    outer, inner = locks("k"), locks("k", client=redis.Redis.from_url(server.url))
    outer.acquire()
    inner.acquire()
    outer.release()
    assert taken_by_another(locks("k")) is False
    inner.release()
    assert taken_by_another(locks("k")) is True


def test_another_database_is_another_place(server, locks):
    """Point 7: the same server, but not the same locks."""
    elsewhere = locks("k", client=redis.Redis(port=server.port, db=1))
    with locks("k") as lock:
        with elsewhere:
            assert (lock.depth, elsewhere.depth) == (1, 1)
        assert lock.owned()
        assert taken_by_another(locks("k")) is False


def test_another_server_that_is_down_is_unavailable_to_the_task(locks):
    """The thread holds a lock of the same name elsewhere. Still `lock_unavailable` decides about the task."""
    app = Celery("down", broker="memory://", set_as_current=False)
    app.conf.rlock_url = f"redis://127.0.0.1:{free_port()}/0"

    @app.task(base=LockedTask, shared=False, lock_key="k", lock_unavailable="run")
    def work():
        return 5

    with locks("k"):
        assert work.apply().get() == 5


def test_the_first_threads_build_one_client(server):
    """Point 7: a slow `rlock_client` factory is called once in a process."""
    built = []

    def factory():
        time.sleep(0.3)
        built.append(redis.Redis.from_url(server.url))
        return built[-1]

    locks = Locks(None, rlock_client=factory)
    freed, checked = [], threading.Lock()

    def nest(number):
        with current(locks.app):
            outer, inner = locks(f"key-{number}"), locks(f"key-{number}")
            with outer:
                with inner:
                    pass
                if taken_by_another(locks(f"key-{number}")):
                    with checked:
                        freed.append(number)

    assert threads(nest, 8) == []
    assert freed == []
    assert len(built) == 1


def test_the_first_threads_do_not_free_each_others_nested_locks(server):
    """Point 7: one thread meets two `RLock` objects that were made while the first client was built."""

    def factory():
        time.sleep(0.2)
        return redis.Redis.from_url(server.url)

    locks = Locks(None, rlock_client=factory)
    made = []
    assert threads(lambda _: made.append(locks("k")), 4) == []
    with made[0]:
        for inner in made[1:]:
            with inner:
                pass
        assert taken_by_another(locks("k")) is False
