"""The commands on a Redis Cluster: they find the locks of every primary."""

from __future__ import annotations

import pytest

from celery_rlock.server.client import connect
from celery_rlock.server.inventory import Inventory
from tests.cli.commands_app import make_app
from tests.cli.run_commands import Locks, documents, run

KEYS = [f"account:{number}" for number in range(40)]


@pytest.fixture
def url(cluster):
    for server in cluster:
        server.client().flushall()
    return f"redis+cluster://127.0.0.1:{cluster[0].port}"


@pytest.fixture
def app(url, server):
    return make_app(server.url, rlock_url=url)


@pytest.fixture
def locks(url):
    return Locks(url)


def test_ls_lists_the_locks_of_every_primary_once(app, locks, cluster):
    for key in KEYS:
        locks.hold(key)
    assert all(server.client().dbsize() > 0 for server in cluster)
    assert sorted(lock["key"] for lock in documents(run(app, "ls", "--json"))) == sorted(KEYS)


def test_show_and_release_find_a_lock_on_any_primary(app, locks):
    for key in KEYS[:4]:
        locks.hold(key)
        locks.add_waiters(key, "id-2")
        shown = documents(run(app, "show", key, "--json", "--timeout", "0"))[0]
        assert [waiter["task_id"] for waiter in shown["in_line"]] == ["id-2"]
        assert run(app, "release", key, "--yes").exit_code == 0
        assert locks.holder(key) is None


def test_explain_finds_the_locks_and_places_of_a_task_on_any_primary(app, locks, cluster):
    """Redis tells only of subscribers at the same node, so each primary is asked about its own locks."""
    for key in KEYS:
        locks.hold(key, task_id=f"holds-{key}")
        locks.add_waiters(key, f"waits-for-{key}", listener="alive" if key == KEYS[0] else "gone")
    subscriptions = [server.client().pubsub() for server in cluster]
    for subscription in subscriptions:
        subscription.subscribe("rlock:wake:alive")
        subscription.get_message(timeout=5)
    for key in KEYS[:6]:
        (held,) = documents(run(app, "explain", "--id", f"holds-{key}", "--json", "--timeout", "0"))
        assert [lock["key"] for lock in held["held"]] == [key]
        (waiting,) = documents(run(app, "explain", "--id", f"waits-for-{key}", "--json", "--timeout", "0"))
        assert [(wait["key"], wait["alive"]) for wait in waiting["waiting"]] == [(key, key == KEYS[0])]
    for subscription in subscriptions:
        subscription.close()


def test_a_lock_is_found_after_its_slot_has_moved(url, locks, cluster):
    """The client read the layout of the Cluster before the move."""
    locks.hold("account:1")
    inventory = Inventory(connect(url), "rlock:")
    assert inventory.find("rlock:{account:1}")[0]
    one, two = sorted(cluster, key=lambda server: not server.client().dbsize())
    slot = one.client().execute_command("CLUSTER KEYSLOT", "account:1")
    ids = {server: server.client().execute_command("CLUSTER MYID").decode() for server in cluster}
    _move(slot, one, two, ids)
    try:
        assert inventory.find("rlock:{account:1}")[0][0].owner.task_id == "id-1"
        assert [record.key for batch in inventory.locks() for record in batch] == ["account:1"]
    finally:
        _move(slot, two, one, ids)


def _move(slot, source, target, ids):
    target.client().execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    source.client().execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    keys = source.client().execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
    if keys:
        source.client().execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for server in (target, source):
        server.client().execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
