"""What workers say of their locks: `celery inspect locks`, `celery control rlock_release`, and who asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest
from celery import VERSION, states

from celery_rlock.core.lock import RLock
from tests.conftest import DEFAULT_KIND
from tests.ops.operated_proj import make_app
from tests.ops.operating import PROJ, WITHIN, Locks, documents, environment, run
from tests.support.daemon import ROOT, running
from tests.support.processes import wait_until
from tests.support.servers import Server
from tests.support.workers import Worker

#: How long workers may take to answer; two that are expected end the waiting.
ANSWER = 10.0

#: Before Celery 5.7 a waiter has no place in Redis: its backoff alone serves.
WAKES = VERSION >= (5, 7)


@pytest.fixture(scope="module")
def node():
    """Broker, backend and locks of this module."""
    with Server.start(DEFAULT_KIND) as node:
        yield node


@pytest.fixture(scope="module")
def app(node):
    return make_app(node.url)


@pytest.fixture(scope="module")
def fleet(node):
    workers = [Worker(PROJ, concurrency=2, env=environment(node.url), hostname=f"w{n}@test") for n in (1, 2)]
    with running(workers):
        yield workers


@pytest.fixture(scope="module")
def locks(node):
    return Locks(node.url)


@pytest.fixture
def name():
    return f"key-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(app, locks, fleet):
    """Starts a task that runs until the test's end, and returns its id when it holds its lock."""
    started = []

    def start(task, key, queue="celery"):
        sent = app.tasks[f"proj.{task}"].apply_async((key,), queue=queue).id
        started.append(sent)
        wait_until(lambda: (locks.holder(key) or "").endswith(sent), timeout=WITHIN, what="the run to hold")
        return sent

    yield start
    for sent in started:
        locks.scripts.client.set(f"told:{sent}", 1, ex=60)


@pytest.fixture
def wait_for(app, locks, fleet):
    """A task that waits for the key, and ends as soon as it runs."""

    def wait_for(task, key):
        sent_id = str(uuid.uuid4())
        locks.scripts.client.set(f"told:{sent_id}", 1, ex=300)
        app.tasks[f"proj.{task}"].apply_async((key,), task_id=sent_id)
        waits = (
            (lambda: locks.has_place(key, sent_id))
            if WAKES
            else lambda: state_of(app, sent_id) == states.RETRY
        )
        wait_until(waits, timeout=WITHIN, what="it to wait")
        return sent_id

    return wait_for


def state_of(app, task_id):
    return app.backend.get_task_meta(task_id, cache=False)["status"]


def answers(app, key, workers=2):
    """Of all workers, by nodename."""
    replies = app.control.broadcast("locks", {"key": key}, reply=True, timeout=ANSWER, limit=workers)
    return {worker: answer for reply in replies for worker, answer in reply.items()}


def _waiting_and_held(app, key):
    """One of each, while one waits; without being woken it runs now and then, to see for itself."""
    said = answers(app, key).values()
    waiting = [row for answer in said for row in answer["waiting"]]
    held = [row for answer in said for row in answer["held"]]
    return (*waiting, *held) if len(waiting) == len(held) == 1 else None


def test_workers_say_what_they_hold_and_what_waits_in_them(app, start, wait_for, name, locks):
    sent = start("long", name)
    waiter = wait_for("long", name)
    waiting, held = wait_until(lambda: _waiting_and_held(app, name), timeout=WITHIN, what="both to be told")
    assert (held["id"], held["key"], held["redis_key"]) == (sent, name, f"rlock:{{{name}}}")
    assert held["owner"].endswith(locks.holder(name))
    assert held["since"] > 10**9
    assert (waiting["id"], waiting["key"]) == (waiter, name)
    assert waiting["since"] > 10**9


def test_celery_inspect_shows_them(node, start, name):
    sent = start("long", name)
    words = [sys.executable, "-m", "celery", "-A", PROJ, "inspect", "locks", name, "--json", "--timeout", "5"]
    done = subprocess.run(
        words, env=environment(node.url), cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=True
    )
    said = json.loads(done.stdout)
    assert [row["id"] for answer in said.values() for row in answer["held"]] == [sent]


@pytest.mark.skipif(not WAKES, reason="waiters have no place in Redis")
def test_show_names_the_run_and_the_worker_of_each_waiter(app, start, wait_for, name):
    sent = start("long", name)
    waiter = wait_for("long", name)
    result = run(app, "show", name, "--timeout", "3", "--json")
    (shown,) = documents(result)
    assert result.exit_code == 0
    assert shown["run"]["id"] == sent
    assert "and it runs there" in shown["verdict"]
    assert [row["task_id"] for row in shown["in_line"]] == [waiter]
    assert shown["in_line"][0]["worker"] in {"w1@test", "w2@test"}


@pytest.mark.skipif(not WAKES, reason="waiters have no place in Redis")
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_other_pools_say_the_same(node, app, name, locks, pool):
    env = environment(node.url)
    with Worker.start(PROJ, pool=pool, concurrency=4, env=env, hostname=f"{pool}@test", queues=(pool,)):
        sent = [app.tasks["proj.long"].apply_async((name,), queue=pool).id for _ in range(2)]
        waiters = locks.scripts.name(name).waiters
        wait_until(lambda: locks.scripts.client.zcard(waiters), timeout=WITHIN, what="one to wait")
        (reply,) = app.control.broadcast(
            "locks", {"key": name}, reply=True, timeout=ANSWER, destination=[f"{pool}@test"]
        )
        (said,) = reply.values()
        ids = [row["id"] for row in said["held"]] + [row["id"] for row in said["waiting"]]
        assert sorted(ids) == sorted(sent)
        assert len(said["held"]) == 1
        for task_id in sent:
            locks.scripts.client.set(f"told:{task_id}", 1, ex=60)
        wait_until(lambda: locks.holder(name) is None, timeout=WITHIN, what="both to end")


def test_explain_says_that_the_holder_runs(app, start, name):
    start("long", name)
    result = run(app, "explain", "long", name, "--timeout", "5")
    assert result.exit_code == 1
    assert "and it runs there" in result.stdout


def test_release_warns_of_a_run_that_goes_on(app, start, name, locks):
    start("long", name)
    result = run(app, "release", name, "--timeout", "5", input="n\n")
    assert "It still runs: released, another may run at the same time." in result.stdout
    assert locks.holder(name)


def test_control_releases_in_the_worker_that_holds_it(app, start, wait_for, name, locks, fleet):
    """The waiter runs at once, and the holder is not shown as such any more."""
    sent = start("long", name)
    waiter = wait_for("long", name)
    replies = app.control.broadcast("rlock_release", {"key": name}, reply=True, timeout=ANSWER, limit=2)
    said = [answer["ok"] for reply in replies for answer in reply.values()]
    assert any("is being released" in text and sent in text for text in said)
    wait_until(lambda: state_of(app, waiter) == states.SUCCESS, timeout=WITHIN, what="the waiter to run")
    wait_until(lambda: locks.holder(name) is None, timeout=WITHIN, what="the lock to be free")
    assert [row for answer in answers(app, name).values() for row in answer["held"]] == []
    logs = "".join(worker.log for worker in fleet)
    assert logs.count("is released by remote control") == 1
    assert f"{sent} is released by remote control" in logs


def test_control_releases_nothing_that_others_hold(app, fleet, name, locks):
    locks.hold(name)
    replies = app.control.broadcast("rlock_release", {"key": name}, reply=True, timeout=ANSWER, limit=2)
    assert all("nothing that runs here" in answer["ok"] for reply in replies for answer in reply.values())
    assert locks.holder(name)


def test_a_worker_answers_while_the_lock_server_does_not(node, name):
    """Its loop never waits for Redis."""
    with Server.start(DEFAULT_KIND) as lock_server:
        env = environment(node.url, rlock_url=lock_server.url)
        with Worker.start(PROJ, env=env, hostname="w3@test", queues=("apart",)):
            app = make_app(node.url, rlock_url=lock_server.url)
            locks = Locks(lock_server.url)
            sent = app.tasks["proj.long"].apply_async((name,), queue="apart").id
            wait_until(lambda: locks.holder(name), timeout=WITHIN, what="it to hold")
            lock_server.pause()
            for command in ("locks", "rlock_release"):
                replies = app.control.broadcast(
                    command, {"key": name}, reply=True, timeout=ANSWER, destination=["w3@test"]
                )
                assert len(replies) == 1
            lock_server.resume()
            wait_until(lambda: locks.holder(name) is None, timeout=WITHIN, what="the release")
            node.client().set(f"told:{sent}", 1, ex=60)


def kill(worker):
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def overdue(locks, key, seconds):
    """The lease as it is when it was not renewed for a while."""
    locks.scripts.client.pexpire(locks.scripts.name(key).lock, int(seconds * 1000))


def test_dead_releases_what_a_killed_worker_held_and_nothing_else(node, app, start, name, locks):
    """A script's lock, a queued one, a living worker's, and one of a task that nobody here knows stay."""
    living = f"{name}-living"
    start("long", living)
    with Worker.start(PROJ, env=environment(node.url), hostname="doomed@test", queues=("doomed",)) as doomed:
        start("long", name, queue="doomed")
        kill(doomed)
    overdue(locks, name, 300)
    locks.hold(f"{name}-queued", worker="1@host/n", delivery="queued", task="proj.unique", ttl=600)
    locks.hold(f"{name}-unknown", worker="other@test", task="elsewhere.task", ttl=600)
    with RLock(f"{name}-script", scripts=locks.scripts, ttl=600):
        result = run(app, "release", "--dead", "--timeout", "2", "--yes", "--json")
        (told,) = documents(result)
        assert locks.holder(f"{name}-script")
    assert result.exit_code == 0
    assert [lock["key"] for lock in told["released"]] == [name]
    assert set(told["alive"]) >= {"w1@test", "w2@test"}
    reasons = {lock["key"]: lock["reason"] for lock in told["left"]}
    assert "no worker" in reasons[f"{name}-script"]
    assert "does not know" in reasons[f"{name}-unknown"]
    assert living not in reasons
    assert all(locks.holder(key) for key in (living, f"{name}-queued", f"{name}-unknown"))


def test_dead_asks_first_and_shows_the_list(app, fleet, name, locks):
    locks.hold(name, worker="gone@test", task="proj.long", ttl=300)
    result = run(app, "release", "--dead", "--timeout", "0.5", input="n\n")
    assert result.exit_code == 1
    assert f"{name}  proj.long[id-1] on gone@test  its worker is dead" in result.stdout
    assert locks.holder(name)
    locks.scripts.client.delete(locks.scripts.name(name).lock)


def test_dead_spares_a_lease_that_may_just_have_been_renewed(app, fleet, name, locks):
    """A solo worker that runs a task answers no ping, but it renews."""
    locks.hold(name, worker="busy@test", task="proj.long", ttl=600)
    (told,) = documents(run(app, "release", "--dead", "--timeout", "0.5", "--yes", "--json"))
    assert [lock["key"] for lock in told["released"]] == []
    assert any(lock["key"] == name and "renewed" in lock["reason"] for lock in told["left"])
    assert locks.holder(name)
    locks.scripts.client.delete(locks.scripts.name(name).lock)


def test_dead_spares_a_holder_that_is_seen_to_renew(app, fleet, name, locks, monkeypatch):
    locks.hold(name, worker="busy@test", task="proj.long", ttl=100)
    ping = app.control.ping

    def renew_meanwhile(**options):
        overdue(locks, name, 200)
        return ping(**options)

    monkeypatch.setattr(app.control, "ping", renew_meanwhile)
    (told,) = documents(run(app, "release", "--dead", "--timeout", "0.5", "--yes", "--force", "--json"))
    assert any(lock["key"] == name and "lives" in lock["reason"] for lock in told["left"])
    locks.scripts.client.delete(locks.scripts.name(name).lock)


def test_dead_refuses_when_nobody_answers_at_all(server):
    """Perhaps it is the broker, or the wrong one."""
    locks, app = Locks(server.url), make_app(server.url)
    locks.hold("key", worker="gone@test", task="proj.long", ttl=300)
    refused = run(app, "release", "--dead", "--timeout", "0.3", "--yes")
    assert refused.exit_code == 1
    assert "no worker answers at all" in refused.stderr
    assert locks.holder("key")
    assert run(app, "release", "--dead", "--timeout", "0.3", "--yes", "--force").exit_code == 0
    assert locks.holder("key") is None
