"""`celery rlock explain TASK_ID`: where a task is, behind which others, and whether its worker lives."""

from __future__ import annotations

import uuid

import pytest

from celery_rlock.running.reschedule import CAN_BE_WOKEN
from celery_rlock.server.inventory import Inventory
from celery_rlock.server.replies import Release, Successor
from tests.cli.commands_app import make_app, plain
from tests.cli.run_commands import PROJ, WITHIN, Locks, documents, environment, run
from tests.support.processes import wait_until
from tests.support.workers import Worker

in_line = pytest.mark.skipif(not CAN_BE_WOKEN, reason="a waiting task has a place in Redis since Celery 5.7")


@pytest.fixture(scope="module")
def app(private_server):
    return make_app(private_server.url)


@pytest.fixture(scope="module")
def locks(private_server):
    return Locks(private_server.url)


@pytest.fixture(scope="module")
def worker(private_server):
    with Worker.start(PROJ, concurrency=1, env=environment(private_server.url), hostname="w1@test") as worker:
        yield worker


@pytest.fixture
def send(app, locks):
    """Publishes a task that runs until the end of the test, or until `told`."""
    sent = []

    def send(task, key, **options):
        sent.append(app.tasks[f"proj.{task}"].apply_async((key,), **options).id)
        return sent[-1]

    yield send
    for task_id in sent:
        locks.lock_server.client.set(f"told:{task_id}", 1, ex=60)


def explain(app, task_id, *words, timeout="0"):
    result = run(app, "explain", task_id, "--json", "--timeout", timeout, *words)
    (document,) = documents(result)
    assert document["task_id"] == task_id
    return result.exit_code, document


def await_state(app, task_id, state):
    """The answer, once it has this state: on a loaded machine a worker may answer too late."""
    found = []

    def has_state():
        found[:] = [explain(app, task_id, timeout="1")]
        return found[0][1]["state"] == state

    wait_until(has_state, timeout=WITHIN, what=f"{task_id} to be {state}")
    return found[0]


def test_a_running_task(app, send, worker, name):
    task_id = send("charge", name)
    wait_until(lambda: explain(app, task_id)[1]["held"], timeout=WITHIN, what="the run")
    exit_code, shown = await_state(app, task_id, "running")
    assert (exit_code, shown["task"]) == (0, "proj.charge")
    assert [(held["key"], held["worker"]) for held in shown["held"]] == [(f"account:{name}", "w1@test")]
    assert "and is running" in shown["held"][0]["verdict"]
    text = run(app, "explain", task_id, "--timeout", "0").stdout
    assert text.startswith(f"proj.charge[{task_id}]: running\n")


@in_line
def test_a_waiting_task_has_a_place_behind_others_in_a_worker(app, send, worker, locks, name):
    locks.hold(f"account:{name}", task_id="holder")
    ids = [send("charge", name) for _ in range(2)]
    for task_id in ids:
        locks.lock_server.client.set(f"told:{task_id}", 1, ex=300)
    wait_until(
        lambda: all(locks.is_waiting(f"account:{name}", task_id) for task_id in ids),
        timeout=WITHIN,
        what="both to wait",
    )
    first, second = (await_in_worker(app, task_id) for task_id in ids)
    assert {first["place"], second["place"]} == {1, 2}
    behind, ahead = (second, ids[0]) if second["place"] == 2 else (first, ids[1])
    assert behind["before"] == [ahead]
    for wait in (first, second):
        assert (wait["key"], wait["worker"], wait["alive"]) == (f"account:{name}", "w1@test", True)
        assert wait["held"]["task_id"] == "holder"
        assert wait["waits_for"] >= 0
    owner = locks.lock_server.redis_keys(f"account:{name}")
    client = locks.lock_server.client
    assert run(app, "release", f"account:{name}", "--yes").exit_code == 0
    wait_until(lambda: not client.exists(owner.lock, owner.waiters), timeout=WITHIN, what="both to have run")
    exit_code, shown = await_state(app, ids[0], "done")
    assert (exit_code, shown["result"]) == (0, "SUCCESS")


def await_in_worker(app, task_id):
    """Where the task waits, once its worker has answered."""

    def waits():
        exit_code, shown = explain(app, task_id, timeout="1")
        return [wait for wait in shown["waiting"] if wait["worker"] and exit_code == 0]

    return wait_until(waits, timeout=WITHIN, what=f"the worker of {task_id}")[0]


@in_line
@pytest.mark.parametrize("held", [True, False])
def test_a_task_that_waits_in_a_killed_worker(app, private_server, send, locks, name, held):
    locks.hold(name, task_id="holder")
    env = environment(private_server.url)
    with Worker.start(PROJ, concurrency=1, env=env, hostname="killed@test", queues=(name,)) as killed:
        task_id = send("long", name, queue=name)
        wait_until(lambda: locks.is_waiting(name, task_id), timeout=WITHIN, what="the waiter")
        killed.kill()
        if not held:
            locks.lock_server.client.delete(locks.lock_server.redis_keys(name).lock)
        exit_code, shown = explain(app, task_id, timeout="0.3")
    assert (exit_code, shown["state"], shown["fine"]) == (1, "waiting", False)
    [wait] = shown["waiting"]
    assert (wait["place"], wait["alive"], wait["worker"]) == (1, False, None)
    assert (wait["held"] is not None) is held
    assert any("a process that is gone" in line and "visibility_timeout" in line for line in shown["text"])
    assert "waiters (1, 1 of them gone)" in run(app, "show", name, "--timeout", "0").stdout


def test_a_published_unique_task_is_pending(app, send, name):
    task_id = send("unique", name, queue="no worker consumes it")
    exit_code, shown = explain(app, task_id)
    assert (exit_code, shown["state"], shown["task"]) == (0, "pending", "proj.unique")
    assert shown["held"][0]["state"] == "queued"


def test_a_task_that_a_worker_has_received_is_pending(app, send, worker, name):
    task_id = send("charge", name, countdown=300)
    _, shown = await_state(app, task_id, "pending")
    assert any("w1@test has received it" in line for line in shown["text"])
    app.control.revoke(task_id)


def test_a_resting_task(app, locks, name):
    owner = locks.hold(name, task_id=(task_id := str(uuid.uuid4())))
    keys = locks.lock_server.redis_keys(name)
    locks.lock_server.release(keys, owner, Release(successor=Successor("rest", 20)))
    exit_code, shown = explain(app, task_id)
    assert (exit_code, shown["state"]) == (0, "resting")


def test_a_task_whose_worker_is_silent_is_a_problem(app, locks, name):
    task_id = str(uuid.uuid4())
    locks.hold(name, worker="gone@pod", task_id=task_id)
    exit_code, shown = explain(app, task_id, timeout="0.3")
    assert (exit_code, shown["state"], shown["fine"]) == (1, "running", False)
    assert "its worker does not answer" in shown["held"][0]["verdict"]


def test_an_unknown_task_says_what_that_may_mean(app):
    exit_code, shown = explain(app, str(uuid.uuid4()))
    assert (exit_code, shown["state"]) == (1, "unknown")
    assert "it is in a queue, or it has ended" in shown["text"][-1]


def test_a_task_that_waits_for_its_retry_is_pending(app):
    task_id = str(uuid.uuid4())
    app.backend.store_result(task_id, None, "RETRY")
    _, shown = explain(app, task_id)
    assert shown["state"] == "pending"
    assert "if that worker is gone, the broker delivers its message again" in shown["text"][-1]


def test_a_result_backend_that_does_not_answer_is_told(private_server, locks, name):
    task_id = str(uuid.uuid4())
    locks.hold(name, task_id=task_id)
    app = make_app(private_server.url, result_backend="redis://127.0.0.1:1/0", rlock_url=private_server.url)
    _, shown = explain(app, task_id)
    assert (shown["state"], shown["result"]) == ("running", None)
    assert any("the result backend could not be asked" in line for line in shown["text"])


def test_answers_of_other_programs_break_nothing(app, monkeypatch):
    """Any client of the broker may answer, with anything."""
    task_id = str(uuid.uuid4())
    row = {"id": task_id, "task": "\x1b[2J", "owner": 7, "since": "x", "pid": []}
    answer = {"held": [row, {}, 7], "waiting": [row, None], "received": "junk"}
    replies = [{"a@b": answer}, {"c@d": None}]
    monkeypatch.setattr(type(app.control), "broadcast", lambda *_, **__: replies)
    result = run(app, "explain", task_id, "--timeout", "1")
    assert result.exit_code == 0, result.exception
    assert "\x1b" not in result.stdout
    assert ": waiting" in result.stdout


class TestIdsAndNames:
    def test_a_uuid_that_is_a_tasks_name_is_the_task(self, app):
        task_id = str(uuid.uuid4())
        app.task(plain, shared=False, name=task_id)
        assert "takes no lock" in run(app, "explain", task_id).stdout
        assert explain(app, task_id, "--id")[1]["state"] == "unknown"

    def test_any_text_may_be_an_id(self, app, locks, name):
        locks.hold(name, task_id="my-own-id")
        refused = run(app, "explain", "my-own-id")
        assert refused.exit_code == 2
        assert "If it is the id of a task, add --id" in refused.stderr
        assert explain(app, "my-own-id", "--id")[1]["held"][0]["key"] == name

    def test_a_key_that_looks_like_an_id_is_told(self, app, locks):
        key = str(uuid.uuid4())
        locks.hold(key)
        result = run(app, "explain", key, "--timeout", "0")
        assert f"task {key}: unknown" in result.stdout
        assert f"celery rlock show {key}" in result.stderr
        assert run(app, "show", key, "--timeout", "0").exit_code == 0

    def test_an_id_takes_no_arguments(self, app):
        assert run(app, "explain", "--id", "my-own-id", "7").exit_code == 2


class TestLine:
    """A line of more waiters than one step reads."""

    @pytest.fixture
    def line(self, locks, name):
        locks.add_waiters(name, *(f"id-{number}" for number in range(1, 1301)))
        return locks.lock_server.redis_keys(name)

    def test_a_waiter_is_found_with_its_number(self, app, line):
        [wait] = explain(app, "id-700", "--id")[1]["waiting"]
        assert wait["place"] == 700
        assert wait["before"] == ["id-697", "id-698", "id-699"]

    def test_none_is_missed_while_the_first_ones_leave(self, locks, line):
        client = locks.lock_server.client
        reading = Inventory(client, "rlock:").line(line.lock)
        seen = [next(reading)[1].task_id]
        client.zpopmin(line.waiters, 600)
        seen += [waiter.task_id for _, waiter in reading]
        assert {f"id-{number}" for number in range(601, 1301)} <= set(seen)


def test_a_user_who_may_not_ask_about_subscribers_sees_the_rest(private_server, locks, name):
    client = locks.lock_server.client
    client.execute_command("ACL", "SETUSER", "survey", "reset", "on", ">p", "~*", "+@all", "-pubsub")
    try:
        locks.add_waiters(name, task_id := f"waits-for-{name}")
        url = private_server.url.replace("redis://", "redis://survey:p@")
        app = make_app(private_server.url, rlock_url=url)
        [wait] = explain(app, task_id, "--id")[1]["waiting"]
        assert (wait["place"], wait["alive"]) == (1, None)
        assert "may not run PUBSUB NUMSUB" in run(app, "explain", "--id", task_id, "--timeout", "0").stdout
        assert run(app, "show", name, "--timeout", "0").exit_code == 1
    finally:
        client.execute_command("ACL", "DELUSER", "survey")
