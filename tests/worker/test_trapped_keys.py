"""The functions for keys and limits may raise anything.

They must end no thread of the worker's parent process, nor the worker.
"""

from __future__ import annotations

import re

import pytest
from celery import states

from celery_rlock import ConfigurationError
from tests.support.fixtures import new_name
from tests.worker.awaiting import SOON, await_state, kill_child

QUEUE = "trapped"
ERRORS = ["SystemExit", "MemoryError", "KeyboardInterrupt", "GeneratorExit", "RecursionError"]


@pytest.fixture(scope="module")
def worker(start_fleet):
    with start_fleet(1, queues=[QUEUE], concurrency=4) as [worker]:
        yield worker


@pytest.fixture
def trap(proj, worker):
    """Publishes a task whose key or limit function raises this error in the parent process."""

    def publish(name, error, seconds=0.0, task="trapped_in_the_parent"):
        sent = getattr(proj, task).name, (name, error, seconds)
        return proj.app.send_task(*sent, queue=QUEUE)  # `apply_async` would compute the limit here

    return publish


@pytest.fixture(autouse=True)
def the_worker_goes_on(worker):
    yield
    assert worker.running
    assert not re.findall(r".*CRITICAL.*", worker.log)


def answer_of(proj, worker):
    """The answer of `celery inspect locks`."""
    [answer] = proj.app.control.broadcast(
        "locks", destination=[worker.nodename], reply=True, timeout=10, limit=1
    )
    return answer[worker.nodename]


@pytest.mark.parametrize("task", ["trapped_in_the_parent", "limit_trapped_in_the_parent"])
def test_a_waiter_whose_key_raises_in_the_parent_disturbs_no_other(proj, worker, trap, hold, waiters, task):
    """The others are woken, and it runs too, by its backoff."""
    bad, good = new_name(), new_name()
    with hold(bad):
        trapped = [trap(bad, error, task=task) for error in ERRORS]
        for one in trapped:
            await_state(one, states.RETRY)
        with hold(good):
            other = proj.waiting.work.apply_async((good,), queue=QUEUE)
            waiters.await_count(good, 1)
        assert other.get(timeout=SOON) == other.id
        assert "error" not in answer_of(proj, worker)
    for one in trapped:
        assert one.get(timeout=SOON)["id"] == one.id


@pytest.mark.parametrize("error", ERRORS)
def test_the_crash_release_of_others_goes_on(proj, worker, trap, name, await_start, await_free, error):
    """Semantics 6: the parent cannot compute the key of one dead task, and frees that of the next."""
    bad = new_name()
    trap(bad, error, 60)
    pid = await_start(bad)["pid"]
    assert "error" not in answer_of(proj, worker)
    kill_child(proj.app, [worker], pid)
    proj.waiting.work.apply_async((name, 60), queue=QUEUE)
    kill_child(proj.app, [worker], await_start(name)["pid"])
    await_free(name, timeout=SOON)


@pytest.mark.parametrize("task", ["trapped", "limit_trapped"])
def test_a_function_without_memory_fails_its_task_only(proj, worker, name, task):
    """Celery ends the whole worker after a MemoryError in a task."""
    result = proj.app.send_task(getattr(proj, task).name, (name, "MemoryError"), queue=QUEUE)
    with pytest.raises(ConfigurationError, match="not enough memory"):
        result.get(timeout=SOON)
