"""The inventory finds every lock, in small steps, and takes nothing else for a lock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_rlock.doctor.output import duration
from celery_rlock.log import printable
from celery_rlock.server.client import connect
from celery_rlock.server.inventory import BATCH, SCAN_COUNT, Inventory
from celery_rlock.server.lock_record import key_in, names_of
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Release, Successor

anything = st.text(st.characters(codec=None), min_size=1)


@pytest.fixture
def inventory(server):
    return Inventory(connect(server.url), "rlock:")


def everything(inventory):
    return {record.key: record for batch in inventory.locks() for record in batch}


@settings(deadline=None)
@given(anything)
def test_a_key_is_shown_as_the_user_named_it(key):
    """Semantics 15: whatever text it holds."""
    shown, digested = key_in(RedisKeys.of(key).lock, "rlock:")
    assert digested or shown == key


@settings(deadline=None)
@given(anything)
def test_a_key_is_found_by_the_form_that_ls_shows(key):
    name = RedisKeys.of(key)
    for written in (key, name.lock, key_in(name.lock, "rlock:")[0]):
        assert name.lock in {meant.lock for meant in names_of(written, "rlock:")}


@settings(deadline=None)
@given(st.text(st.characters(codec=None, exclude_characters="\\"), min_size=1, max_size=20))
def test_a_key_is_found_by_its_escaped_form(key):
    assert RedisKeys.of(key).lock in {meant.lock for meant in names_of(printable(key), "rlock:")}


@settings(deadline=None)
@given(anything)
def test_escaped_text_has_no_control_characters(text):
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (59, "59s"),
        (59.9, "1m00s"),
        (3599, "59m59s"),
        (3660, "1h01m"),
        (90000, "1d01h"),
    ],
)
def test_durations_are_short(seconds, shown):
    assert duration(seconds) == shown


def test_the_record_of_a_held_lock_has_all_its_fields(locks, inventory):
    locks.hold("account:7", ttl=50)
    locks.add_waiters("account:7", "id-2", "id-3")
    record = everything(inventory)["account:7"]
    assert (record.state, record.task, str(record.owner)) == ("held", "proj.charge", "worker-1@pod/d1:id-1")
    assert (record.depth, record.waiters, record.is_script, record.redelivered) == (1, 2, False, False)
    assert 0 < record.lease_left <= 50
    assert 0 <= record.held_for < 30
    assert record.token > 10**15


def test_a_client_with_decode_responses_works_too(locks, server):
    """A user's own `rlock_client` may set it."""
    locks.hold("é\n")
    decoding = Inventory(server.client(decode_responses=True, protocol=3), "rlock:")
    assert everything(decoding)["é\n"].owner.task_id == "id-1"


def test_queued_and_resting_locks_have_their_own_state(locks, inventory):
    locks.hold("queued", worker="1@host/abcd", delivery="queued")
    rests = locks.hold("resting", delivery="d2")
    locks.lock_server.release(
        locks.lock_server.redis_keys("resting"), rests, Release(successor=Successor("rest", 20))
    )
    assert {key: record.state for key, record in everything(inventory).items()} == {
        "queued": "queued",
        "resting": "resting",
    }


def test_waiters_are_read_in_order_up_to_the_limit(locks, inventory):
    locks.hold("key")
    locks.add_waiters("key", *(f"id-{number}" for number in range(30)))
    count, waiters = inventory.waiters("rlock:{key}", 5)
    assert count == 30
    assert [waiter.task_id for waiter in waiters] == [f"id-{number}" for number in range(5)]


def test_an_owner_outside_of_a_worker_is_recognized(locks, inventory):
    locks.hold("script", worker="123@host", task_id="thread-140", task="")
    locks.hold("numbered", worker="1@host", task_id="id-9")
    locks.hold("nested", worker="worker-1@pod", task_id="id-8", task="")
    scripts = {key for key, record in everything(inventory).items() if record.is_script}
    assert scripts == {"script"}


def test_other_redis_keys_are_not_listed(client, inventory, locks):
    locks.hold("lock")
    client.hset("rlock:{small}", mapping={"a": 1})
    client.hset("rlock:{large}", mapping={f"field-{number}:x": "x" * 100 for number in range(5000)})
    client.set("rlock:{text}", "a")
    client.set("rlock:{lock}:token", 1)
    client.hset("other:{lock}", mapping={"d:id": 1, "@token": 1})
    assert set(everything(inventory)) == {"lock"}
    assert sorted(inventory.progress.foreign) == ["rlock:{large}", "rlock:{small}"]


def test_a_large_foreign_hash_is_not_read_completely(client, inventory, server):
    client.hset("rlock:{large}", mapping={f"field-{number}:x": "x" * 100 for number in range(50000)})
    before = client.info("stats")["total_net_output_bytes"]
    assert everything(inventory) == {}
    assert client.info("stats")["total_net_output_bytes"] - before < 100_000


def test_wildcards_in_the_prefix_are_literal(server, locks):
    locks.hold("mine")
    starred = Inventory(connect(server.url), "r*[a]?\\:")
    assert everything(starred) == {}
    starred.client.eval("redis.call('HSET', KEYS[1], 'd:i', 1, '@token', 5)", 1, "r*[a]?\\:{key}")
    assert set(everything(starred)) == {"key"}


def test_listing_takes_small_steps(client, inventory, locks):
    """It never uses KEYS. Each step has the same size, whatever the number of keys."""
    others, held = 20 * SCAN_COUNT, 3 * BATCH
    for first in range(0, others, 1000):
        client.mset({f"other:{number}": "x" for number in range(first, first + 1000)})
    for number in range(held):
        locks.hold(f"key:{number}", delivery=f"d{number}")
    client.config_resetstat()
    assert len(everything(inventory)) == held
    calls = {
        name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()
    }
    assert "keys" not in calls
    assert calls["scan"] >= (others + held) / SCAN_COUNT / 2  # Redis may visit a few more keys than asked
    assert calls["pttl"] == calls["zcard"] == held
    assert calls["hscan"] == 2 * held  # the lock, and its pending calls
    assert calls["time"] >= held / BATCH  # one at the head of each batch


def test_batches_arrive_during_the_search(client, inventory, locks):
    client.mset({f"other:{number}": "x" for number in range(10 * SCAN_COUNT)})
    for number in range(3 * BATCH):
        locks.hold(f"key:{number}", delivery=f"d{number}")
    batches = inventory.locks()
    assert any(next(batches) for _ in range(3))
    assert inventory.progress.looked_at < inventory.progress.keys


def test_no_step_blocks_the_server(client, inventory, locks):
    """By the server's own count, a step takes less than ten milliseconds on average."""
    for first in range(0, 100_000, 10_000):
        client.mset({f"other:{number}": "x" for number in range(first, first + 10_000)})
    for number in range(1000):
        locks.hold(f"key:{number}", delivery=f"d{number}")
    client.config_resetstat()
    assert len(everything(inventory)) == 1000
    stats = client.info("commandstats")
    per_call = {
        name: stats[f"cmdstat_{name}"]["usec_per_call"] for name in ("scan", "hscan", "pttl", "zcard")
    }
    assert per_call["scan"] < 5_000
    assert BATCH * (per_call["hscan"] + per_call["pttl"] + per_call["zcard"]) < 10_000


def test_listing_writes_nothing(client, inventory, locks):
    locks.hold("key", ttl=600)
    locks.add_waiters("key", "id-2")
    before = {key: (client.dump(key), client.pttl(key) > 0) for key in client.scan_iter()}
    everything(inventory)
    inventory.waiters("rlock:{key}", 10)
    assert {key: (client.dump(key), client.pttl(key) > 0) for key in client.scan_iter()} == before
