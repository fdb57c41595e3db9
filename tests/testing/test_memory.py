"""`rlock_url = "memory://"`: everything that a lock does, in one process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
from celery.contrib.testing.worker import start_worker

from celery_rlock import ConfigurationError, LockedTask, RLock, settings
from celery_rlock.asyncio import RLock as AsyncRLock
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.doctor.setup import Setup
from celery_rlock.server.client import connect
from celery_rlock.testing import memory_locks
from tests.docs.pages import ROOT

WITHOUT_FAKEREDIS = """
import sys
sys.modules[{missing!r}] = None
from celery import Celery
from celery_rlock import ConfigurationError, RLock
app = Celery("x", set_as_current=True)
app.conf.rlock_url = "memory://"
try:
    RLock("k")
except ConfigurationError as error:
    print(error)
"""


@pytest.fixture
def app(bare_app):
    with memory_locks(app=bare_app):
        yield bare_app


def test_one_name_is_one_server_in_this_process():
    assert connect("memory://") is connect("memory:///")
    assert connect("memory://one") is connect("memory://one")
    assert connect("memory://one") is not connect("memory://two")


def test_a_wrong_name_is_refused():
    with pytest.raises(ConfigurationError, match="a name may follow memory://"):
        connect("memory://user:secret@host")


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_the_extra_the_error_says_what_to_install(missing):
    code = WITHOUT_FAKEREDIS.format(missing=missing)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert 'pip install "celery-rlock[testing]"' in done.stdout


def test_the_package_does_not_import_fakeredis():
    code = "import sys; from celery_rlock import LockedTask, RLock; print('fakeredis' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


def test_celerys_memory_broker_does_not_choose_locks_in_memory(bare_app):
    with pytest.raises(ConfigurationError, match="set rlock_url"):
        RLock("k")


def test_the_lock_is_entered_again_and_renewed(app):
    lock = RLock("k", ttl=0.5)
    with lock, lock:
        assert lock.depth == 2
        time.sleep(1.2)
        assert lock.held
        assert lock.owned()
    assert not lock.locked()


def test_a_waiter_is_woken_by_the_release(app):
    lock, got = RLock("k", ttl=60), []
    lock.acquire()

    def wait():
        lock.acquire()
        got.append(lock.token)
        lock.release()

    thread = threading.Thread(target=wait)
    app.set_default()
    thread.start()
    time.sleep(0.3)
    first = lock.token
    lock.release()
    thread.join(20)
    assert got > [first]


def test_a_forked_child_has_locks_of_its_own(app):
    with RLock("k"):
        child = os.fork()
        if child == 0:
            free = not settings.redis_server(app).client.exists("rlock:{k}")
            os._exit(0 if free else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert RLock("k").locked()


def test_a_worker_in_a_thread_runs_tasks_one_after_the_other(app):
    inside, seen = [], []

    @app.task(base=LockedTask, shared=False, name="work", lock_key="k")
    def work(number):
        inside.append(number)
        seen.append(len(inside))
        time.sleep(0.05)
        inside.remove(number)
        return number

    with start_worker(app, pool="threads", concurrency=3, perform_ping_check=False):
        results = [app.tasks["work"].delay(number) for number in range(4)]
        assert sorted(result.get(timeout=30) for result in results) == [0, 1, 2, 3]
    assert seen == [1, 1, 1, 1]


def test_a_unique_task_is_published_once(app):
    @app.task(base=LockedTask, shared=False, lock_from="publish")
    def unique(shop):
        return shop

    first, second = unique.delay("books"), unique.delay("books")
    assert first.id == second.id
    assert unique.lock_of("books").state == "queued"


def test_the_doctor_finds_nothing_wrong_with_the_server(app):
    setup = Setup(app)
    found = {check.name: check.findings(setup) for check in CHECKS if check.asks == "server"}
    wrong = {name: each for name, findings in found.items() for each in findings if each.todo}
    assert wrong == {}
    assert found["connection"][0].what.startswith("memory://")
    assert "waiter woken" in found["scripts"][0].what


@pytest.mark.parametrize(
    ("conf", "is_fine"),
    [
        ({"worker_pool": "solo"}, True),
        ({"worker_pool": "prefork"}, False),
        ({"worker_pool": "solo", "broker_url": "redis://localhost/0"}, False),
    ],
)
def test_the_doctor_warns_if_several_processes_have_locks_in_memory(app, conf, is_fine):
    app.conf.update(conf)
    (shared,) = (check for check in CHECKS if check.name == "shared")
    (finding,) = shared.findings(Setup(app))
    assert (finding.todo == "") is is_fine


def test_a_command_says_that_it_cannot_see_these_locks(tmp_path):
    (tmp_path / "inmemory.py").write_text(
        "from celery import Celery\napp = Celery('x', broker='memory://')\napp.conf.rlock_url = 'memory://'\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "inmemory", "rlock", "ls"]
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no command can see them" in done.stderr


def test_coroutines_and_threads_share_the_locks(app):
    """The asyncio lock waits for a thread's release, in the same memory."""
    lock, entered = RLock("shared"), threading.Event()

    def hold():
        with lock:
            entered.set()
            time.sleep(0.3)

    async def main():
        assert not await AsyncRLock("shared").acquire(timeout=0)
        async with AsyncRLock("shared") as mine:
            assert (mine.depth, await mine.owned()) == (1, True)
            assert not await asyncio.to_thread(lambda: RLock("shared").acquire(blocking=False))

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(20)
    asyncio.run(main())
    holder.join()
    assert not lock.locked()
