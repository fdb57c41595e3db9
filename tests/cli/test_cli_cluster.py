"""The commands on a Redis Cluster: every primary is asked."""

from __future__ import annotations

import pytest

from celery_rlock.core.client import connect
from celery_rlock.core.inventory import Inventory
from tests.conftest import DEFAULT_KIND
from tests.ops.operated_proj import make_app
from tests.ops.operating import Locks, documents, run
from tests.support.processes import free_port, wait_until
from tests.support.servers import Server

HALF = 8192
KEYS = [f"account:{number}" for number in range(40)]


@pytest.fixture(scope="module")
def cluster():
    """Two primaries, half of the slots each."""
    node = {"cluster_enabled": "yes", "cluster_node_timeout": 5000}
    with (
        Server.start(DEFAULT_KIND, cluster_port=free_port(), **node) as one,
        Server.start(DEFAULT_KIND, cluster_port=(bus := free_port()), **node) as two,
    ):
        for server, first, last in ((one, 0, HALF - 1), (two, HALF, 2 * HALF - 1)):
            server.client().execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        one.client().execute_command("CLUSTER MEET", "127.0.0.1", two.port, bus)
        wait_until(
            lambda: all(each.client().cluster("INFO")["cluster_state"] == "ok" for each in (one, two)),
            timeout=30,
            what="the Cluster",
        )
        yield [one, two]


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


def test_locks_of_every_primary_are_listed_once(app, locks, cluster):
    for key in KEYS:
        locks.hold(key)
    assert all(server.client().dbsize() > 0 for server in cluster)
    assert sorted(lock["key"] for lock in documents(run(app, "ls", "--json"))) == sorted(KEYS)


def test_one_lock_is_shown_and_released_wherever_it_lies(app, locks):
    for key in KEYS[:4]:
        locks.hold(key)
        locks.wait(key, "id-2")
        shown = documents(run(app, "show", key, "--json", "--timeout", "0"))[0]
        assert [waiter["task_id"] for waiter in shown["in_line"]] == ["id-2"]
        assert run(app, "release", key, "--yes").exit_code == 0
        assert locks.holder(key) is None


def test_a_lock_whose_slot_has_moved_is_still_found(url, locks, cluster):
    """The client's picture of the Cluster is older than the move."""
    locks.hold("account:1")
    inventory = Inventory(connect(url), "rlock:")
    assert inventory.find("rlock:{account:1}")[0] is not None
    one, two = sorted(cluster, key=lambda server: not server.client().dbsize())
    slot = one.client().execute_command("CLUSTER KEYSLOT", "account:1")
    ids = {server: server.client().execute_command("CLUSTER MYID").decode() for server in cluster}
    _move(slot, one, two, ids)
    try:
        assert inventory.find("rlock:{account:1}")[0].owner.task_id == "id-1"
        assert [entry.key for batch in inventory.locks() for entry in batch] == ["account:1"]
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
