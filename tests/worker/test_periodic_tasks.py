"""Periodic tasks: two beats make one run per tick, and a stopped fleet finds one message."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import pairwise

import pytest

from tests.support.daemon import running
from tests.support.processes import wait_until
from tests.support.workers import Beat

#: `proj.tick` holds its key for HOLD seconds.
PERIOD, HOLD, TICKS = 1.0, 0.7, 5
SENT = "Scheduler: Sending due task"


@pytest.fixture
def start_beats(project, environment):
    """Starts schedulers with one entry; they are gone at the end of the block."""

    @contextmanager
    def start(count, entry):
        conf = {"beat_schedule": {"entry": entry}, "beat_max_loop_interval": 1}
        env = {**environment, "RLOCK_TEST_CONF": json.dumps(conf)}
        beats = [Beat(f"{project}:app", env=env) for _ in range(count)]
        with running(beats):
            yield beats

    return start


def ticks(beat):
    return beat.log.count(SENT)


def test_two_beats_make_one_run_per_tick(proj, name, queue, start_beats, start_fleet, taken_at):
    """The recipe: `lock_busy="skip"` and `lock_hold_at_least` just below the period."""
    entry = {"task": proj.tick.name, "schedule": PERIOD, "args": [name], "options": {"queue": queue}}
    with start_fleet(1, queues=[queue], concurrency=2), start_beats(2, entry) as beats:
        done = lambda: all(ticks(beat) > TICKS for beat in beats)  # noqa: E731
        wait_until(done, timeout=100, what=f"more than {TICKS} ticks of both")
        sent = [ticks(beat) for beat in beats]
        proj.other.apply_async((f"{name}-last",), queue=queue).get(timeout=20)
        starts = taken_at(name)
    assert min(sent) - 1 <= len(starts) <= max(sent) + 1, (sent, starts)
    assert min(later - earlier for earlier, later in pairwise(starts)) > HOLD - 0.1


def test_a_beat_that_ticks_into_a_stopped_fleet_leaves_one_message(
    proj, name, queue, start_beats, start_fleet, messages, records
):
    entry = {"task": proj.once.name, "schedule": 0.3, "args": [name], "options": {"queue": queue}}
    with start_beats(2, entry) as beats:
        wait_until(lambda: all(ticks(beat) > 5 for beat in beats), timeout=60, what="some ticks")
    assert len(messages(queue)) == 1
    with start_fleet(1, queues=[queue]):
        proj.other.apply_async((f"{name}-last",), queue=queue).get(timeout=20)
    assert [entry["event"] for entry in records(name)] == ["start", "end"]


def test_a_beat_of_a_task_that_is_not_unique_leaves_a_message_for_each_tick(
    proj, name, queue, start_beats, messages
):
    """Without this the test before would prove nothing."""
    entry = {"task": proj.work.name, "schedule": 0.3, "args": [name], "options": {"queue": queue}}
    with start_beats(1, entry) as (beat,):
        wait_until(lambda: ticks(beat) > 3, timeout=60, what="some ticks")
    assert len(messages(queue)) >= 3


def test_the_options_of_an_entry_are_the_options_of_its_calls(proj, name, queue, start_beats, messages):
    options = {"queue": queue, "lock_from": "publish", "lock_busy": "skip", "lock_ttl": 5}
    entry = {"task": proj.work.name, "schedule": 0.3, "args": [name], "options": options}
    with start_beats(1, entry) as (beat,):
        wait_until(lambda: ticks(beat) > 3, timeout=60, what="some ticks")
    (message,) = messages(queue)
    assert message["headers"]["rlock_options"] == {"from": "publish", "busy": "skip", "ttl": 5}


def test_an_entry_with_a_wrong_option_publishes_nothing(proj, name, queue, start_beats, messages):
    """Semantics 16: the scheduler says so in its log, and goes on."""
    options = {"queue": queue, "lock_bussy": "skip"}
    entry = {"task": proj.work.name, "schedule": 0.3, "args": [name], "options": options}
    with start_beats(1, entry) as (beat,):
        wait_until(lambda: "did you mean 'lock_busy'" in beat.log, timeout=60, what="the error")
        assert beat.running
    assert messages(queue) == []
