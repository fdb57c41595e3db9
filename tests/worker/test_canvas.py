"""Semantics 13: a locked task is safe in a canvas. No result hangs, and no successor is lost."""

from __future__ import annotations

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError, TaskRevokedError

from tests.support.processes import wait_until
from tests.worker.awaiting import await_state

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.mark.parametrize("turn", range(5))
def test_a_chain_on_one_key_never_finds_its_own_lock_busy(proj, name, fleet, turn):
    """Semantics 5 and 13: released before the successor is published."""
    result = chain(proj.work.si(name, 0), proj.work.si(name, 0), proj.work.si(name, 0))()
    last = result.get(timeout=30)
    ids = [last["id"], result.parent.id, result.parent.parent.id]
    assert not [worker for worker in fleet for task_id in ids if f"[{task_id}] waits" in worker.log]


def test_a_chain_waits_for_a_busy_lock_and_goes_on(proj, name, hold):
    """Semantics 13: chain."""
    with hold(name):
        result = chain(proj.work.si(f"{name}-a", 0), proj.work.si(name, 0), proj.work.si(f"{name}-b", 0))()
        await_state(result.parent, states.RETRY)
    assert result.get(timeout=20)["id"] == result.id


def test_a_group_on_one_key_runs_one_by_one(proj, name, overlaps):
    """Semantics 13: group."""
    assert len(group(proj.work.si(name, 0.02) for _ in range(8))().get(timeout=30)) == 8
    assert overlaps(name) == 0


def test_a_chord_on_one_key_ends_in_its_body(proj, name, overlaps):
    """Semantics 13: chord."""
    result = chord((proj.work.si(name, 0.02) for _ in range(8)), proj.add_up.s())()
    assert result.get(timeout=30) == 8
    assert overlaps(name) == 0


def test_map_starmap_and_chunks_take_the_lock_for_each_item(proj, name, records):
    """Semantics 13: map, starmap, chunks."""
    assert len(proj.work.map([name, name]).delay().get(timeout=30)) == 2
    assert len(proj.work.starmap([(name, 0)] * 3).delay().get(timeout=30)) == 3
    assert len(proj.work.chunks([(name, 0)] * 4, 2)().get(timeout=30)) == 2
    assert all(entry["held"] for entry in records(name))
    assert len(records(name)) == 2 * (2 + 3 + 4)


def test_a_link_is_called_after_a_busy_retry(proj, name, hold):
    """Semantics 13: link."""
    with hold(name):
        result = proj.work.apply_async((name, 0), link=proj.work.si(f"{name}-linked", 0))
        await_state(result, states.RETRY)
    result.get(timeout=20)
    linked = wait_until(lambda: result.children, timeout=20, what="the linked task")
    assert linked[0].get(timeout=20)["held"]


def test_a_skip_in_a_chord_ends_in_its_errback(proj, name, hold, records):
    """Semantics 11 and 13: a chord ends in its errback, and no `get()` hangs."""
    with hold(name):
        body = proj.add_up.s().on_error(proj.note_error.s())
        result = chord([proj.skipping.si(f"{name}-free"), proj.skipping.si(name)], body)()
        with pytest.raises((ChordError, TaskRevokedError), match="is held by"):
            result.get(timeout=30)
    wait_until(
        lambda: any(entry["id"] == result.id for entry in records("errbacks")), timeout=10, what="the errback"
    )


def test_a_skip_in_a_chain_ends_the_chain(proj, name, hold, records):
    """Semantics 11 and 13: the last result of a chain says why the chain ended."""
    with hold(name):
        result = chain(proj.skipping.si(name), proj.work.si(f"{name}-never", 0))()
        with pytest.raises(TaskRevokedError, match="is held by"):
            result.get(timeout=30)
    assert records(f"{name}-never") == []


def test_a_skip_in_a_group_ends_the_group(proj, name, hold):
    """Semantics 11: the other members run."""
    with hold(name):
        free, skipped = (result := group(proj.skipping.si(f"{name}-free"), proj.skipping.si(name))()).results
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
        assert skipped.state == states.REVOKED
        assert free.get(timeout=30)["held"]
