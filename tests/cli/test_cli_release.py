"""`celery rlock release KEY`: only who was shown loses the lock, and the waiters are told."""

from __future__ import annotations

import threading

import pytest

from celery_rlock.core.lock import RLock
from celery_rlock.core.scripts import Scripts
from tests.ops.operated_proj import make_app
from tests.ops.operating import Locks, documents, run
from tests.support.processes import wait_until


@pytest.fixture
def app(server):
    return make_app(server.url)


@pytest.fixture
def locks(server):
    return Locks(server.url)


def test_it_asks_before_it_acts(app, locks):
    locks.hold("key")
    result = run(app, "release", "key", "--timeout", "0", input="n\n")
    assert result.exit_code == 1
    assert "proj.charge[id-1] on worker-1@pod" in result.stdout
    assert locks.holder("key") == "d1:id-1"


def test_yes_releases(app, locks):
    locks.hold("key")
    assert run(app, "release", "key", "--timeout", "0", input="y\n").exit_code == 0
    assert locks.holder("key") is None


def test_an_answer_that_never_comes_is_a_no(app, locks):
    locks.hold("key")
    assert run(app, "release", "key", "--timeout", "0", input="").exit_code == 1
    assert locks.holder("key")


def test_a_new_owner_keeps_what_was_shown_as_anothers(app, locks, monkeypatch):
    """Semantics 3: between the question and the answer the lock went to somebody else."""
    first = locks.hold("key")
    name = locks.scripts.name("key")

    def change_hands(*_, **__):
        locks.scripts.release(name, first, 0)
        locks.hold("key", delivery="d2", task_id="id-2")
        return True

    monkeypatch.setattr("click.confirm", change_hands)
    result = run(app, "release", "key", "--timeout", "0")
    assert result.exit_code == 1
    assert "somebody else holds 'key' by now: proj.charge[id-2]" in result.stderr
    assert locks.holder("key") == "d2:id-2"


def test_force_releases_whoever_holds_it_by_then(app, locks, monkeypatch):
    first = locks.hold("key")
    name = locks.scripts.name("key")

    def change_hands(*_, **__):
        locks.scripts.release(name, first, 0)
        locks.hold("key", delivery="d2", task_id="id-2")
        return True

    monkeypatch.setattr("click.confirm", change_hands)
    assert run(app, "release", "key", "--force", "--timeout", "0").exit_code == 0
    assert locks.holder("key") is None


def test_an_owner_that_was_noted_before_is_compared(app, locks):
    owner = locks.hold("key")
    refused = run(app, "release", "key", "--yes", "--owner", "worker-1@pod/d0:id-0")
    assert refused.exit_code == 1
    assert locks.holder("key")
    assert run(app, "release", "key", "--yes", "--owner", str(owner)).exit_code == 0
    assert locks.holder("key") is None


def test_the_first_waiter_is_woken(app, locks):
    """Semantics 12: by this release as by any."""
    locks.hold("key", ttl=600)
    got = threading.Event()

    def wait_for_it():
        with RLock("key", scripts=Scripts(locks.scripts.client)):
            got.set()

    waiter = threading.Thread(target=wait_for_it, daemon=True)
    waiter.start()
    wait_until(lambda: locks.scripts.client.zcard("rlock:{key}:waiters"), timeout=20, what="it to wait")
    result = run(app, "release", "key", "--yes")
    assert "the first is woken" in result.stdout
    assert got.wait(20)
    waiter.join(20)


def test_json_tells_who_lost_it(app, locks):
    locks.hold("key")
    (told,) = documents(run(app, "release", "key", "--yes", "--json"))
    assert (told["released"], told["holder"]["task_id"]) == (True, "id-1")
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
