"""`celery rlock release KEY`: only the holder that was shown loses the lock; the first waiter is woken."""

from __future__ import annotations

import threading

import pytest

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.replies import Release
from tests.cli.run_commands import documents, run
from tests.support.processes import wait_until


def test_it_asks_before_it_releases(app, locks):
    locks.hold("key")
    result = run(app, "release", "key", "--timeout", "0", input="n\n")
    assert result.exit_code == 1
    assert "proj.charge[id-1] on worker-1@pod" in result.stdout
    assert locks.holder("key") == "d1:id-1"


def test_the_answer_yes_releases(app, locks):
    locks.hold("key")
    assert run(app, "release", "key", "--timeout", "0", input="y\n").exit_code == 0
    assert locks.holder("key") is None


def test_no_answer_means_no(app, locks):
    locks.hold("key")
    assert run(app, "release", "key", "--timeout", "0", input="").exit_code == 1
    assert locks.holder("key")


@pytest.fixture
def change_hands(locks, monkeypatch):
    """Another owner takes the lock `key` while the command asks for confirmation."""
    first = locks.hold("key")

    def confirm(*_, **__):
        locks.lock_server.release(locks.lock_server.redis_keys("key"), first, Release())
        locks.hold("key", delivery="d2", task_id="id-2")
        return True

    monkeypatch.setattr("click.confirm", confirm)


def test_an_owner_that_takes_the_lock_meanwhile_keeps_it(app, locks, change_hands):
    """Semantics 3: the lock changes hands between the question and the answer."""
    result = run(app, "release", "key", "--timeout", "0")
    assert result.exit_code == 1
    assert "another owner has taken 'key' by now: proj.charge[id-2]" in result.stderr
    assert locks.holder("key") == "d2:id-2"


def test_force_releases_the_lock_of_any_owner(app, locks, change_hands):
    assert run(app, "release", "key", "--force", "--timeout", "0").exit_code == 0
    assert locks.holder("key") is None


def test_the_owner_option_releases_only_that_owner(app, locks):
    owner = locks.hold("key")
    refused = run(app, "release", "key", "--yes", "--owner", "worker-1@pod/d0:id-0")
    assert refused.exit_code == 1
    assert locks.holder("key")
    assert run(app, "release", "key", "--yes", "--owner", str(owner)).exit_code == 0
    assert locks.holder("key") is None


def test_the_release_wakes_the_first_waiter(app, locks):
    """Semantics 12: a release by hand wakes like any other."""
    locks.hold("key", ttl=600)
    got = threading.Event()

    def wait_for_it():
        with ReentrantLock("key", lock_server=RedisLockServer(locks.lock_server.client)):
            got.set()

    waiter = threading.Thread(target=wait_for_it, daemon=True)
    waiter.start()
    wait_until(lambda: locks.lock_server.client.zcard("rlock:{key}:waiters"), timeout=20, what="the waiter")
    result = run(app, "release", "key", "--yes")
    assert "the first is woken" in result.stdout
    assert got.wait(20)
    waiter.join(20)


def test_json_names_the_holder_that_lost_the_lock(app, locks):
    locks.hold("key")
    (first,) = documents(run(app, "release", "key", "--yes", "--json"))
    assert (first["released"], first["holder"]["task_id"]) == (True, "id-1")
    (again,) = documents(run(app, "release", "key", "--yes", "--json"))
    assert (again["released"], again["holder"]) == (False, None)


def test_a_queued_lock_can_be_released(app, locks):
    locks.hold("key", delivery="queued", worker="1@host/n")
    assert run(app, "release", "key", "--yes").exit_code == 0
    assert locks.holder("key") is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nothing-there", "--yes"], 1),
        ([], 2),
        (["key", "--dead"], 2),
        (["--dead", "--timeout", "0"], 2),
        (["key", "--json"], 2),
    ],
)
def test_bad_input_releases_nothing(app, locks, words, code):
    locks.hold("key")
    assert run(app, "release", *words).exit_code == code
    assert locks.holder("key")
