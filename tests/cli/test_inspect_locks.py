"""Commands that ask workers: `celery inspect locks`, `celery control rlock_release`, `release --dead`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest
from celery import states

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.running.reschedule import CAN_BE_WOKEN
from tests.cli.commands_app import make_app
from tests.cli.run_commands import PROJ, WITHIN, Locks, documents, environment, run
from tests.support.daemon import ROOT, running
from tests.support.processes import wait_until
from tests.support.servers import DEFAULT_KIND, Server
from tests.support.workers import Worker

#: The most seconds to wait for workers to answer.
ANSWER = 10.0

#: For tests in which a waiting task has a place in Redis; before Celery 5.7 it only retries after its
#: backoff.
WAKES = CAN_BE_WOKEN


@pytest.fixture(scope="module")
def app(private_server):
    return make_app(private_server.url)


@pytest.fixture(scope="module")
def fleet(private_server):
    workers = [
        Worker(PROJ, concurrency=2, env=environment(private_server.url), hostname=f"w{n}@test")
        for n in (1, 2)
    ]
    with running(workers):
        yield workers


@pytest.fixture(scope="module")
def locks(private_server):
    return Locks(private_server.url)


@pytest.fixture
def start(app, locks, fleet):
    """Starts a task that runs until the end of the test, and returns its id once it holds its lock."""
    started = []

    def start(task, key, queue="celery"):
        sent = app.tasks[f"proj.{task}"].apply_async((key,), queue=queue).id
        started.append(sent)
        wait_until(
            lambda: (locks.holder(key) or "").endswith(sent), timeout=WITHIN, what="the task to hold its lock"
        )
        return sent

    yield start
    for sent in started:
        locks.lock_server.client.set(f"told:{sent}", 1, ex=60)


@pytest.fixture
def wait_for(app, locks, fleet):
    """Sends a task that waits for the key, and ends as soon as it runs."""

    def wait_for(task, key):
        sent_id = str(uuid.uuid4())
        locks.lock_server.client.set(f"told:{sent_id}", 1, ex=300)
        app.tasks[f"proj.{task}"].apply_async((key,), task_id=sent_id)
        waits = (
            (lambda: locks.is_waiting(key, sent_id))
            if WAKES
            else lambda: state_of(app, sent_id) == states.RETRY
        )
        wait_until(waits, timeout=WITHIN, what="the task to wait")
        return sent_id

    return wait_for


def state_of(app, task_id):
    return app.backend.get_task_meta(task_id, cache=False)["status"]


def answers(app, key, workers=2):
    """The answers of all workers, by nodename."""
    replies = app.control.broadcast("locks", {"key": key}, reply=True, timeout=ANSWER, limit=workers)
    return {worker: answer for reply in replies for worker, answer in reply.items()}


def _waiting_and_held(app, key):
    """The waiting task and the holder; None at a moment when the waiting task tries again."""
    answered = answers(app, key).values()
    waiting = [row for answer in answered for row in answer["waiting"]]
    held = [row for answer in answered for row in answer["held"]]
    return (*waiting, *held) if len(waiting) == len(held) == 1 else None


def test_workers_list_the_running_and_the_waiting_tasks(app, start, wait_for, name, locks):
    sent = start("long", name)
    waiter = wait_for("long", name)
    waiting, held = wait_until(
        lambda: _waiting_and_held(app, name), timeout=WITHIN, what="both tasks in the answers"
    )
    assert (held["id"], held["key"], held["redis_key"]) == (sent, name, f"rlock:{{{name}}}")
    assert held["owner"].endswith(locks.holder(name))
    assert held["since"] > 10**9
    assert (waiting["id"], waiting["key"]) == (waiter, name)
    assert waiting["since"] > 10**9


def test_celery_inspect_lists_them(private_server, start, name):
    sent = start("long", name)
    words = [sys.executable, "-m", "celery", "-A", PROJ, "inspect", "locks", name, "--json", "--timeout", "5"]
    done = subprocess.run(
        words,
        env=environment(private_server.url),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=True,
    )
    answered = json.loads(done.stdout)
    assert [row["id"] for answer in answered.values() for row in answer["held"]] == [sent]


@pytest.mark.skipif(not WAKES, reason="waiters have no place in Redis")
def test_show_names_the_run_and_the_worker_of_each_waiter(app, start, wait_for, name):
    sent = start("long", name)
    waiter = wait_for("long", name)
    result = run(app, "show", name, "--timeout", "3", "--json")
    (shown,) = documents(result)
    assert result.exit_code == 0
    assert shown["run"]["id"] == sent
    assert "and is running" in shown["verdict"]
    assert [row["task_id"] for row in shown["in_line"]] == [waiter]
    assert shown["in_line"][0]["worker"] in {"w1@test", "w2@test"}


@pytest.mark.skipif(not WAKES, reason="waiters have no place in Redis")
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_other_pools_answer_the_same(private_server, app, name, locks, pool):
    env = environment(private_server.url)
    with Worker.start(PROJ, pool=pool, concurrency=4, env=env, hostname=f"{pool}@test", queues=(pool,)):
        sent = [app.tasks["proj.long"].apply_async((name,), queue=pool).id for _ in range(2)]
        waiters = locks.lock_server.redis_keys(name).waiters
        wait_until(lambda: locks.lock_server.client.zcard(waiters), timeout=WITHIN, what="one task to wait")
        (reply,) = app.control.broadcast(
            "locks", {"key": name}, reply=True, timeout=ANSWER, destination=[f"{pool}@test"]
        )
        (answer,) = reply.values()
        ids = [row["id"] for row in answer["held"]] + [row["id"] for row in answer["waiting"]]
        assert sorted(ids) == sorted(sent)
        assert len(answer["held"]) == 1
        for task_id in sent:
            locks.lock_server.client.set(f"told:{task_id}", 1, ex=60)
        wait_until(lambda: locks.holder(name) is None, timeout=WITHIN, what="both tasks to end")


def test_explain_shows_that_the_holder_is_running(app, start, name):
    start("long", name)
    result = run(app, "explain", "long", name, "--timeout", "5")
    assert result.exit_code == 1
    assert "and is running" in result.stdout


def test_release_warns_that_the_holder_is_running(app, start, name, locks):
    start("long", name)
    result = run(app, "release", name, "--timeout", "5", input="n\n")
    assert "It is still running: after the release, another task may run at the same time." in result.stdout
    assert locks.holder(name)


def test_control_releases_in_the_worker_that_holds_it(app, start, wait_for, name, locks, fleet):
    """The waiting task runs at once, and the worker no longer lists the old holder."""
    sent = start("long", name)
    waiter = wait_for("long", name)
    replies = app.control.broadcast("rlock_release", {"key": name}, reply=True, timeout=ANSWER, limit=2)
    texts = [answer["ok"] for reply in replies for answer in reply.values()]
    assert any("is being released" in text and sent in text for text in texts)
    wait_until(
        lambda: state_of(app, waiter) == states.SUCCESS, timeout=WITHIN, what="the waiting task to run"
    )
    wait_until(lambda: locks.holder(name) is None, timeout=WITHIN, what="the lock to be free")
    assert [row for answer in answers(app, name).values() for row in answer["held"]] == []
    logs = "".join(worker.log for worker in fleet)
    assert logs.count("was released by remote control") == 1
    assert f"{sent} was released by remote control" in logs


def test_control_releases_only_locks_of_its_own_tasks(app, fleet, name, locks):
    locks.hold(name)
    replies = app.control.broadcast("rlock_release", {"key": name}, reply=True, timeout=ANSWER, limit=2)
    assert all("no task that runs here" in answer["ok"] for reply in replies for answer in reply.values())
    assert locks.holder(name)


def test_a_worker_answers_while_the_lock_server_is_silent(private_server, name):
    """The worker's loop never waits for Redis."""
    with Server.start(DEFAULT_KIND) as lock_server:
        env = environment(private_server.url, rlock_url=lock_server.url)
        with Worker.start(PROJ, env=env, hostname="w3@test", queues=("apart",)):
            app = make_app(private_server.url, rlock_url=lock_server.url)
            locks = Locks(lock_server.url)
            sent = app.tasks["proj.long"].apply_async((name,), queue="apart").id
            wait_until(lambda: locks.holder(name), timeout=WITHIN, what="the task to hold its lock")
            lock_server.pause()
            for command in ("locks", "rlock_release"):
                replies = app.control.broadcast(
                    command, {"key": name}, reply=True, timeout=ANSWER, destination=["w3@test"]
                )
                assert len(replies) == 1
            lock_server.resume()
            wait_until(lambda: locks.holder(name) is None, timeout=WITHIN, what="the release")
            private_server.client().set(f"told:{sent}", 1, ex=60)


def kill(worker):
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def overdue(locks, key, seconds):
    """Shorten the lease, as if the holder had not renewed it for a while."""
    locks.lock_server.client.pexpire(locks.lock_server.redis_keys(key).lock, int(seconds * 1000))


def test_dead_releases_only_the_locks_of_a_killed_worker(private_server, app, start, name, locks):
    """It keeps the locks of a script, a queued task, a living worker and an unknown task."""
    living = f"{name}-living"
    start("long", living)
    with Worker.start(
        PROJ, env=environment(private_server.url), hostname="doomed@test", queues=("doomed",)
    ) as doomed:
        start("long", name, queue="doomed")
        kill(doomed)
    overdue(locks, name, 300)
    locks.hold(f"{name}-queued", worker="1@host/n", delivery="queued", task="proj.unique", ttl=600)
    locks.hold(f"{name}-unknown", worker="other@test", task="elsewhere.task", ttl=600)
    with ReentrantLock(f"{name}-script", lock_server=locks.lock_server, ttl=600):
        result = run(app, "release", "--dead", "--timeout", "2", "--yes", "--json")
        (report,) = documents(result)
        assert locks.holder(f"{name}-script")
    assert result.exit_code == 0
    assert [lock["key"] for lock in report["released"]] == [name]
    assert set(report["alive"]) >= {"w1@test", "w2@test"}
    reasons = {lock["key"]: lock["reason"] for lock in report["left"]}
    assert "not a worker" in reasons[f"{name}-script"]
    assert "does not know" in reasons[f"{name}-unknown"]
    assert living not in reasons
    assert all(locks.holder(key) for key in (living, f"{name}-queued", f"{name}-unknown"))


def test_dead_shows_the_locks_and_asks(app, fleet, name, locks):
    locks.hold(name, worker="gone@test", task="proj.long", ttl=300)
    result = run(app, "release", "--dead", "--timeout", "0.5", input="n\n")
    assert result.exit_code == 1
    assert f"{name}  proj.long[id-1] on gone@test  its worker is dead" in result.stdout
    assert locks.holder(name)
    locks.lock_server.client.delete(locks.lock_server.redis_keys(name).lock)


def test_dead_keeps_a_lock_that_may_just_have_been_renewed(app, fleet, name, locks):
    """A worker with the solo pool answers no ping while it runs a task, but it renews."""
    locks.hold(name, worker="busy@test", task="proj.long", ttl=600)
    (report,) = documents(run(app, "release", "--dead", "--timeout", "0.5", "--yes", "--json"))
    assert [lock["key"] for lock in report["released"]] == []
    assert any(lock["key"] == name and "renewed" in lock["reason"] for lock in report["left"])
    assert locks.holder(name)
    locks.lock_server.client.delete(locks.lock_server.redis_keys(name).lock)


def test_dead_keeps_a_lock_that_is_renewed_meanwhile(app, fleet, name, locks, monkeypatch):
    locks.hold(name, worker="busy@test", task="proj.long", ttl=100)
    ping = app.control.ping

    def renew_meanwhile(**options):
        overdue(locks, name, 200)
        return ping(**options)

    monkeypatch.setattr(app.control, "ping", renew_meanwhile)
    (report,) = documents(run(app, "release", "--dead", "--timeout", "0.5", "--yes", "--force", "--json"))
    assert any(lock["key"] == name and "is alive" in lock["reason"] for lock in report["left"])
    locks.lock_server.client.delete(locks.lock_server.redis_keys(name).lock)


def test_dead_refuses_when_no_worker_answers(server):
    """The broker may be down, or the wrong one."""
    locks, app = Locks(server.url), make_app(server.url)
    locks.hold("key", worker="gone@test", task="proj.long", ttl=300)
    refused = run(app, "release", "--dead", "--timeout", "0.3", "--yes")
    assert refused.exit_code == 1
    assert "no worker answers at all" in refused.stderr
    assert locks.holder("key")
    assert run(app, "release", "--dead", "--timeout", "0.3", "--yes", "--force").exit_code == 0
    assert locks.holder("key") is None
