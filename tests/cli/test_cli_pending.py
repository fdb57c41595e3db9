"""The commands know the calls that are queued behind the running one."""

from __future__ import annotations

import pytest

from celery_rlock.server.replies import PendingRequest
from tests.cli.run_commands import documents, run


@pytest.fixture
def queued(app):
    """Queues a call of a task behind the run of the key `name`, as its publisher does."""

    def queue(task="pending", task_id="id-2"):
        lock_server = app.tasks[f"proj.{task}"].lock_of("name")._lock_server
        redis_keys = lock_server.redis_keys("name")
        request = PendingRequest(task_id, "5fd0cc31", "17@web/8ac01f22", f"proj.{task}", 1)
        lock_server.reserve(redis_keys, request, 60)
        assert lock_server.queue(redis_keys, request, 60).is_queued

    return queue


def test_ls_has_a_row_for_the_queued_call_also_while_the_key_is_free(app, locks, queued):
    queued()
    assert [(row["state"], row["task_id"], row["worker"]) for row in documents(run(app, "ls", "--json"))] == [
        ("queued", "id-2", "17@web")
    ]
    locks.hold("name", task_id="id-1", task="proj.pending")
    rows = documents(run(app, "ls", "--json", "--sort", "token"))
    assert sorted((row["state"], row["task_id"]) for row in rows) == [("held", "id-1"), ("queued", "id-2")]


def test_show_names_the_queued_call_behind_the_holder(app, locks, queued):
    locks.hold("name", task_id="id-1", task="proj.pending")
    queued()
    result = run(app, "show", "name", "--timeout", "0")
    assert (
        "proj.pending[id-2], published by 17@web, is queued or scheduled, and runs when the key is free"
        in (result.stdout)
    )
    (shown,) = documents(run(app, "show", "name", "--timeout", "0", "--json"))
    assert [shown["task_id"], *(other["task_id"] for other in shown["others"])] == ["id-1", "id-2"]


def test_lock_of_has_the_queued_call(app, locks, queued):
    task = app.tasks["proj.pending"]
    queued()
    assert task.lock_of("name").state == "queued"
    locks.hold("name", task_id="id-1", task="proj.pending")
    status = task.lock_of("name")
    assert [(holder.state, holder.task_id) for holder in status.holders] == [
        ("held", "id-1"),
        ("queued", "id-2"),
    ]
    assert status.state == "held"


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("pending", "it is not published: apply_async returns the result of proj.pending[id-2]"),
        ("newest", "it takes the place of proj.newest[id-2]"),
    ],
)
def test_explain_says_what_the_next_call_does(app, locks, queued, task, text):
    locks.hold("name", task_id="id-1", task=f"proj.{task}")
    (document,) = documents(run(app, "explain", task, "name", "--timeout", "0", "--json"))
    assert document["action"] == "retry"
    queued(task)
    (document,) = documents(run(app, "explain", task, "name", "--timeout", "0", "--json"))
    assert (document["action"], document["outlook"].startswith(text)) == ("duplicate", True)
    assert [reason["option"] for reason in document["why"]] == [
        "lock_key",
        "lock_from",
        "lock_pending",
        "lock_duplicate",
    ]


def test_release_frees_the_holder_and_only_then_the_queued_call(app, locks, queued):
    """After a purge the place of a message that never comes can be freed."""
    locks.hold("name", task_id="id-1", task="proj.pending")
    queued()
    run(app, "release", "name", "--yes", "--timeout", "0")
    assert [row["task_id"] for row in documents(run(app, "ls", "--json"))] == ["id-2"]
    assert run(app, "release", "name", "--yes", "--timeout", "0").exit_code == 0
    assert documents(run(app, "ls", "--json")) == []
