"""Semantics 13 with `lock_from="publish"`: a member of a canvas is always published, and takes its turn."""

from __future__ import annotations

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError, TaskRevokedError

from tests.support.processes import wait_until
from tests.worker.awaiting import await_state

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.fixture
def running(proj, name, await_start, tell):
    """A task that has the key and runs until the test calls `tell(name)`; duplicates wait for it."""
    result = proj.once.delay(name, until_told=True)
    await_start(name)
    assert proj.once.delay(name).id == result.id
    yield result
    tell(name)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_duplicate_in_a_chain_takes_its_turn(proj, name, running, starts, overlaps, tell, place):
    """Whether it is the first, the middle or the last member."""
    members = [proj.once.si(f"{name}-{number}") for number in range(3)]
    members[place] = proj.once.si(name)
    result = chain(members)()
    chained = [result.parent.parent, result.parent, result]
    await_state(chained[place], states.RETRY)
    tell(name)
    assert result.get(timeout=30)["id"] == result.id
    assert starts(name) == [running.id, chained[place].id]
    assert overlaps(name) == 0


def test_a_chain_of_one_key_runs_to_its_end(proj, name, starts, await_free):
    result = chain(proj.once.si(name), proj.once.si(name, 0.0, 0), proj.once.si(name))()
    assert result.get(timeout=30)["id"] == result.id
    assert len(starts(name)) == 1 + 3 + 1
    await_free(name)


def test_several_chains_of_one_key_run_to_their_ends(proj, name, starts, overlaps):
    results = [chain(proj.once.si(name, 0.1), proj.once.si(name, 0.1))() for _ in range(3)]
    for result in results:
        result.get(timeout=60)
    assert len(set(starts(name))) == 6
    assert overlaps(name) == 0


def test_duplicates_in_a_group_take_their_turns(proj, name, running, starts, overlaps, tell):
    results = group(proj.once.si(name, 0.05) for _ in range(5))()
    for result in results:
        await_state(result, states.RETRY)
    tell(name)
    assert len({fields["id"] for fields in results.get(timeout=60)}) == 5
    assert len(set(starts(name))) == 6
    assert overlaps(name) == 0


def test_duplicates_in_a_chords_header_take_their_turns_and_the_body_runs(
    proj, name, running, overlaps, tell
):
    result = chord((proj.once.si(name, 0.05) for _ in range(5)), proj.add_up.s())()
    for member in result.parent:
        await_state(member, states.RETRY)
    tell(name)
    assert result.get(timeout=60) == 5
    assert overlaps(name) == 0


def test_a_duplicate_as_a_chords_body_takes_its_turn(proj, name, running, starts, tell):
    result = chord([proj.other.si(f"{name}-1"), proj.other.si(f"{name}-2")], proj.once.si(name))()
    await_state(result, states.RETRY)
    tell(name)
    assert result.get(timeout=30)["id"] == result.id
    assert starts(name) == [running.id, result.id]


def test_a_chord_whose_header_and_body_have_one_key_ends(proj, name, starts, await_free):
    result = chord((proj.once.si(name) for _ in range(3)), proj.once.si(name))()
    assert result.get(timeout=60)["id"] == result.id
    assert len(starts(name)) == 4
    await_free(name)


def test_a_canvas_raises_no_duplicate_task(proj, name):
    result = chord((proj.once_or_raise.si(name, 0.05) for _ in range(4)), proj.add_up.s())()
    assert result.get(timeout=60) == 4


def test_a_skip_in_a_chord_ends_in_its_errback(proj, name, running, records):
    """Semantics 11: no `get()` hangs."""
    body = proj.add_up.s().on_error(proj.note_error.s())
    result = chord([proj.once_or_skip.si(f"{name}-free"), proj.once_or_skip.si(name)], body)()
    with pytest.raises((ChordError, TaskRevokedError), match="is held by"):
        result.get(timeout=30)
    wait_until(
        lambda: any(entry["id"] == result.id for entry in records("errbacks")), timeout=10, what="the errback"
    )


def test_a_skip_in_a_chain_ends_the_chain(proj, name, running, records):
    """Semantics 11: the last result says why."""
    result = chain(proj.once_or_skip.si(name), proj.once.si(f"{name}-never"))()
    with pytest.raises(TaskRevokedError, match="is held by"):
        result.get(timeout=30)
    assert records(f"{name}-never") == []


def test_a_skipped_member_does_not_free_the_running_tasks_key(proj, name, running, holder):
    """Semantics 3: the release is owner-checked."""
    before = holder(name)
    skipped = group(proj.once_or_skip.si(name), proj.other.si(f"{name}-free"))().results[0]
    await_state(skipped, states.REVOKED)
    assert running.state == states.PENDING
    assert holder(name) == before


def test_a_link_of_a_duplicate_is_called(proj, name, running, await_start, tell):
    linked = f"{name}-linked"
    result = proj.once.apply_async((name,), link=proj.once.si(linked))
    tell(name)
    assert result.get(timeout=30)["id"] == result.id != running.id
    assert await_start(linked)["held"]


def test_a_duplicate_of_a_call_inside_a_run_is_not_published(proj, name, records):
    """A run is no canvas: its calls are plain calls."""
    first, second = proj.publishes.delay(name).get(timeout=20)
    assert first == second
    wait_until(lambda: len(records(name)) == 2, timeout=20, what="the run")
