"""`lock_key` as a list: all of the keys, or none."""

from __future__ import annotations

import time

import pytest
from celery import states

from celery_rlock import LockBusy
from tests.support.processes import wait_until
from tests.worker.awaiting import await_state, kill_child, lock

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.fixture
def accounts(name):
    """Two names of accounts, in the order of their keys; and their keys."""
    return f"{name}-a", f"{name}-b", f"account:{name}-a", f"account:{name}-b"


def test_all_keys_are_taken_in_sorted_order_and_each_has_a_token(proj, accounts, await_free):
    a, b, first, second = accounts
    before = proj.transfer.delay(a, b).get(timeout=20)
    after = proj.transfer.delay(b, a).get(timeout=20)
    assert before["keys"] == after["keys"] == [first, second]
    assert all(after["tokens"][key] > before["tokens"][key] > 0 for key in (first, second))
    await_free(first)
    await_free(second)


def test_a_key_that_comes_twice_is_taken_once(proj, accounts, await_free):
    a, _, first, _ = accounts
    assert proj.transfer.delay(a, a).get(timeout=20)["keys"] == [first]
    await_free(first)


def test_templates_and_callables_mix_and_a_callable_may_return_several(proj, name):
    keys = [f"account:{name}-{letter}" for letter in "cab"]
    done = proj.transfer_all.delay([f"{name}-{letter}" for letter in "caba"]).get(timeout=20)
    assert done["keys"] == sorted(keys)
    assert proj.transfer_waiting.delay("x", name).get(timeout=20)["tokens"].keys() == {
        "account:x",
        f"account:{name}",
    }


def test_each_key_has_a_hash_tag_of_its_own(proj, accounts, await_start, locks, tell):
    """So they may be in different slots of a Cluster."""
    a, b, first, second = accounts
    result = proj.transfer.delay(a, b, until_told=a)
    await_start(a)
    assert locks.exists(lock(first), lock(second)) == 2
    tell(a)
    result.get(timeout=20)


@pytest.mark.parametrize("busy", [0, 1])
def test_a_task_that_finds_one_key_busy_keeps_none(proj, accounts, hold, holder, busy, records):
    """All or none: the keys that it had taken are free again at once."""
    a, b, *keys = accounts
    with hold(keys[busy]):
        result = proj.transfer.apply_async((a, b), lock_backoff=30, lock_backoff_max=30)
        await_state(result, states.RETRY)
        assert holder(keys[1 - busy]) is None
        assert proj.work.apply_async((a, 0), lock_key=keys[1 - busy], lock_busy="fail").get(timeout=20)
        assert [entry for entry in records(a) if entry["id"] == result.id] == []
    assert result.get(timeout=30)["held"]


def test_fail_names_the_key_that_is_busy(proj, accounts, hold):
    a, b, _, second = accounts
    with hold(second), pytest.raises(LockBusy) as error:
        proj.transfer.apply_async((a, b), lock_busy="fail").get(timeout=20)
    assert error.value.key == second


def test_a_task_waits_in_place_for_one_key_and_then_for_the_other(proj, accounts, hold, await_free, waiters):
    """A waiting task keeps none of its keys."""
    a, b, first, second = accounts
    with hold(second):
        with hold(first):
            result = proj.transfer_waiting.delay(a, b)
            waiters.await_count(first, 1)
        waiters.await_count(second, 1)
        await_free(first, timeout=5)
        assert result.state == states.PENDING
    assert result.get(timeout=30)["tokens"].keys() == {first, second}


def test_runs_with_a_key_in_common_do_not_overlap(proj, name, overlaps, spans):
    """Semantics 1: exclusive."""
    a, b, c = (f"{name}-{letter}" for letter in "abc")
    results = [proj.transfer.delay(*pair, 0.05) for pair in [(a, b), (b, c), (c, a)] * 4]
    for result in results:
        assert result.get(timeout=60)["held"]
    assert [len(spans(account)) for account in (a, b, c)] == [8, 8, 8]
    assert [overlaps(account) for account in (a, b, c)] == [0, 0, 0]


def test_all_keys_are_renewed(proj, accounts, holder, await_free):
    """Semantics 7: the run is longer than its lease of a second."""
    a, b, first, second = accounts
    result = proj.transfer_renewed.delay(a, b, 2)
    wait_until(lambda: holder(second), timeout=20, what="the run")
    owner = holder(first)
    time.sleep(1.3)
    assert holder(first) == holder(second) == owner
    assert result.get(timeout=20) == {"held": True, "lost": False, "same": True}
    await_free(first)
    await_free(second)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_run_that_loses_one_key_has_lost_its_lock(proj, accounts, lost, await_free):
    """Semantics 8: lost is told, and the other key is freed."""
    a, b, *keys = accounts
    assert proj.transfer_losing.delay(a, b, (a, b)[lost]).get(timeout=20) == {"held": False, "lost": True}
    await_free(keys[1 - lost], timeout=10)


def test_all_keys_of_a_killed_child_are_freed(proj, fleet, accounts, await_start, await_free, holder):
    """Semantics 6: the parent process frees them, long before the lease of 30 s is over."""
    a, b, first, second = accounts
    proj.transfer_late.delay(a, b, 60)
    pid = await_start(a)["pid"]
    assert holder(first) == holder(second)
    kill_child(proj.app, fleet, pid)
    await_free(first, timeout=15)
    await_free(second, timeout=15)


def test_a_run_that_lost_one_key_to_another_owner_frees_only_the_other(
    proj, accounts, hold, locks, holder, tell, await_start
):
    """Semantics 3: the release is owner-checked."""
    a, b, first, second = accounts
    result = proj.transfer.delay(a, b, until_told=a)
    await_start(b)
    locks.delete(lock(second))
    with hold(second) as other:
        tell(a)
        result.get(timeout=20)
        wait_until(lambda: holder(first) is None, timeout=10, what="the other key to be free")
        assert other.owned()
