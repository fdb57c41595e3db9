"""Semantics 9: a busy retry publishes the message as it was, or fails the task. It loses none."""

from __future__ import annotations

import pytest
from celery import Task, states

from tests.support.outages import refused
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.worker.awaiting import SOON, await_busy, await_log, await_state, kill_child

QUEUE = "republished"
CONF = {
    "accept_content": ["json", "yaml", "pickle"],
    "result_backend_transport_options": {"retry_policy": {"max_retries": 1}},
}


@pytest.fixture(scope="module")
def backend_proxy(fleet_redis):
    """The worker reaches the result backend through this proxy only."""
    with Proxy(fleet_redis.port) as proxy:
        yield proxy


@pytest.fixture(scope="module", autouse=True)
def worker(start_fleet, backend_proxy):
    env = {"RLOCK_TEST_BACKEND": backend_proxy.url, "C_FORCE_ROOT": "1"}  # pickle, as root in a container
    with start_fleet(1, queues=[QUEUE], concurrency=2, env=env, conf=CONF) as [worker]:
        yield worker


@pytest.mark.parametrize("serializer", ["yaml", "pickle"])
def test_the_message_keeps_its_serializer(proj, name, hold, serializer):
    """JSON could not carry the set that the task was called with."""
    pytest.importorskip(serializer)
    with hold(name):
        options = {"serializer": serializer, "compression": "gzip", "argsrepr": "('secret',)"}
        sent = proj.adds_up.apply_async((name, {1, 2}), queue=QUEUE, **options)
        await_busy(sent)
    assert sent.get(timeout=SOON) == {"type": "set", "sum": 3, "shown": "('secret',)"}


@pytest.mark.parametrize("task", ["unpublishable", "unpublishable_late"])
def test_a_task_that_cannot_be_published_again_fails_at_once(proj, name, hold, task, records):
    """It neither keeps its slot nor comes back again and again."""
    with hold(name):
        sent = getattr(proj, task).apply_async((name,), queue=QUEUE)
        await_state(sent, states.FAILURE)
        assert "object" in str(sent.result)
    other = proj.work.apply_async((f"{name}-other",), queue=QUEUE)
    assert other.get(timeout=SOON)["id"] == other.id
    assert not records(name)


def test_a_result_backend_that_is_away_loses_no_task(proj, worker, name, hold, backend_proxy, count):
    """In both ack modes."""
    with hold(name), refused(backend_proxy):
        tasks = (proj.work, proj.once_late)
        sent = [task.apply_async((name, 0), queue=QUEUE, lock_from="run") for task in tasks]
        for result in sent:
            await_log([worker], f"could not store that task {result.id} waits", timeout=2 * SOON)
    for result in sent:
        assert result.get(timeout=SOON)["id"] == result.id
    assert count(name, "end") == {result.id: 1 for result in sent}


def test_the_message_keeps_the_arguments_that_the_task_was_called_with(proj, name, hold, records):
    """A base class may keep some of them for itself. The lock's key is made of all of them."""
    with hold(f"acme:{name}"):
        sent = proj.of_tenant.apply_async((name,), {"tenant": "acme"}, queue=QUEUE)
        await_busy(sent)
        assert not records(name)
    assert sent.get(timeout=SOON)["id"] == sent.id
    assert {entry["tenant"] for entry in records(f"tenants:{sent.id}")} == {"acme"}


def test_the_parent_frees_the_key_of_a_killed_run_whose_base_class_takes_an_argument(
    proj, worker, name, await_start, holder, await_free
):
    """Semantics 6: the parent process computes the same key as the child."""
    proj.of_tenant.apply_async((name,), {"tenant": "acme", "until_told": True}, queue=QUEUE)
    pid = await_start(name)["pid"]
    assert holder(f"acme:{name}")
    kill_child(proj.app, [worker], pid)
    await_free(f"acme:{name}")


def test_the_options_of_a_call_survive_behind_nested_headers(proj, name, hold):
    """Celery shows a task only the inner headers, and sends only these again."""
    key = f"other-{name}"
    with hold(key):
        headers = {"headers": {"mine": 1}}
        sent = proj.tells.apply_async((name,), {"retry": 1}, queue=QUEUE, headers=headers, lock_key=key)
        await_busy(sent)
    result = sent.get(timeout=SOON)
    assert (result["keys"], result["retries"]) == ([key], 1)


def waited_before(records, name):
    """How long the task waited between its retry and its run."""
    [retried], [started] = records(name, "retry"), records(name, "start")
    return started["at"] - retried["at"]


def test_a_former_waiter_keeps_the_delay_of_a_retry_before_its_run(proj, name, hold, tell, records):
    delay = 2
    with hold(name):
        sent = proj.retries_before_its_run.apply_async((name, delay), queue=QUEUE)
        await_busy(sent)
        tell(name)
    sent.get(timeout=SOON)
    assert waited_before(records, name) >= delay


@pytest.mark.skipif(not hasattr(Task, "retry_on_worker_lost"), reason="needs Celery 5.7")
def test_a_former_waiter_keeps_the_delay_of_a_retry_after_a_lost_worker(proj, name, hold, records):
    with hold(name):
        sent = proj.killed_once.apply_async((name,), queue=QUEUE)
        await_busy(sent)
    wait_until(lambda: sent.state == states.SUCCESS, timeout=2 * SOON, what="the second run")
    assert waited_before(records, name) >= proj.killed_once.default_retry_delay
