"""The commands know a key with several places: a row, a description and a release for each holder."""

from __future__ import annotations

import pytest

from celery_rlock.cli.metrics import survey
from celery_rlock.server.inventory import Inventory
from celery_rlock.server.replies import Release
from tests.cli.run_commands import documents, run

MANY = 300


@pytest.fixture
def holders(locks):
    """Two of three places of a key are taken, and two tasks wait."""
    owners = [
        locks.hold(
            "name", worker=f"worker-{number}@pod", task_id=f"id-{number}", task="proj.limited", limit=3
        )
        for number in (1, 2)
    ]
    locks.add_waiters("name", "id-8", "id-9", listener="listener/3")
    return owners


def test_ls_has_a_row_for_each_holder(app, holders):
    rows = documents(run(app, "ls", "--json", "--sort", "worker"))
    assert [(row["task_id"], row["slot"], row["limit"], row["waiters"]) for row in rows] == [
        ("id-1", 0, 3, 2),
        ("id-2", 1, 3, 0),
    ]
    assert {row.split("\t")[-1] for row in run(app, "ls").stdout.splitlines()} == {
        "PLACE",
        "0 of 3",
        "1 of 3",
    }


def test_show_describes_each_holder_and_the_line(app, holders):
    result = run(app, "show", "name", "--timeout", "0")
    assert result.exit_code == 0
    for text in ("worker-1@pod", "worker-2@pod", "0 of 3", "1 of 3", "1. id-8", "2. id-9"):
        assert text in result.stdout
    (shown,) = documents(run(app, "show", "name", "--timeout", "0", "--json"))
    assert [shown["task_id"], *(other["task_id"] for other in shown["others"])] == ["id-1", "id-2"]
    assert [waiter["listener"] for waiter in shown["in_line"]] == ["listener", "listener"]


def test_explain_counts_the_places(app, locks, holders):
    result = run(app, "explain", "limited", "name", "--timeout", "0")
    assert result.exit_code == 0
    assert "it runs at once" in result.stdout
    assert "lock_limit = 3" in result.stdout
    locks.hold("name", task_id="id-3", task="proj.limited", limit=3)
    (document,) = documents(run(app, "explain", "limited", "name", "--timeout", "0", "--json"))
    assert document["action"] == "skip"
    (document,) = documents(run(app, "explain", "skipping", "name", "--timeout", "0", "--json"))
    assert document["action"] == "skip"


def test_release_frees_all_holders_or_the_one_that_is_named(app, locks, holders):
    """Only those that were shown."""
    assert run(app, "release", "name", "--yes", "--owner", str(holders[1])).exit_code == 0
    assert [row["task_id"] for row in documents(run(app, "ls", "--json"))] == ["id-1"]
    locks.hold("name", task_id="id-3", task="proj.limited", limit=3)
    result = run(app, "release", "name", "--timeout", "0", input="y\n")
    assert "Release all 2?" in result.stdout
    assert run(app, "ls", "--json").exit_code == 1


def test_a_resting_place_is_shown_and_can_be_released(app, locks):
    owner = locks.hold("name", task="proj.limited", limit=3, hold=600)
    locks.lock_server.release(locks.lock_server.redis_keys("name"), owner, Release())
    (row,) = documents(run(app, "ls", "--json"))
    assert (row["state"], row["task_id"], row["worker"]) == ("resting", "id-1", "worker-1@pod")
    assert "lock_hold_at_least keeps" in run(app, "show", "name", "--timeout", "0").stdout
    assert run(app, "release", "name", "--yes").exit_code == 0
    assert locks.holder("name") is None


def test_many_holders_are_all_found_and_counted(app, locks):
    for number in range(MANY):
        locks.hold("name", delivery=f"d{number}", task_id=f"id-{number}", task="proj.limited", limit=MANY)
    locks.add_waiters("name", "id-x", listener=f"listener/{MANY}")
    inventory = Inventory(locks.lock_server.client, "rlock:")
    ((found),) = inventory.find("rlock:{name}")
    assert [record.slot for record in found] == list(range(MANY))
    counted = survey(locks.lock_server, str, 60)
    assert counted.locks["proj.limited", "held"] == MANY
    assert counted.waiters["proj.limited"] == 1
    assert not inventory.progress.foreign


def test_a_key_that_is_kept_for_a_woken_waiter_is_free_and_not_foreign(app, locks):
    """The place of a waiter that was woken is no holder."""
    record = "9000000000000000 0 3 0 0 0 0 0  \n"
    locks.lock_server.client.hset("rlock:{name}", "turn:listener/3:d:id-9", record)
    inventory = Inventory(locks.lock_server.client, "rlock:")
    assert inventory.find("rlock:{name}") == [[]]
    assert not inventory.progress.foreign
