"""Our headers of a message: read once, into typed and bounded values."""

from __future__ import annotations

import json
import pickle

import pytest

from celery_rlock.options.headers import (
    NO_HEADERS,
    Delivery,
    LockHeaders,
    delivery_of,
    read_headers,
    write_headers,
)

FULL = LockHeaders({"ttl": 5, "key": ["a:{a}"]}, 3, 2, 1, 1_700_000_000_000_000, "5ea1", "rlock:{a:1}", 0)


def test_what_is_written_is_what_is_read():
    headers = {"mine": 1}
    write_headers(headers, FULL)
    assert read_headers(json.loads(json.dumps(headers)), "task") == FULL
    assert headers["mine"] == 1


def test_writing_replaces_what_was_there():
    headers = {"mine": 1, **FULL.as_dict(), "rlock_delivery": "x"}
    write_headers(headers, FULL.without_waiting())
    assert headers == {"mine": 1, "rlock_options": {"ttl": 5, "key": ["a:{a}"]}}
    write_headers(headers, NO_HEADERS)
    assert headers == {"mine": 1}


def test_headers_one_level_deeper_count_too_and_those_above_go_first():
    deeper = {"rlock_options": {"ttl": 5}, "rlock_attempts": 9}
    found = read_headers({"headers": deeper, "rlock_attempts": 2}, "task")
    assert (found.options, found.busy_attempts) == ({"ttl": 5}, 2)


@pytest.mark.parametrize(("retries", "is_waiter"), [(0, True), (1, False), (None, False)])
def test_how_a_task_waited_counts_at_the_same_retry_only(retries, is_waiter):
    """Celery sends our headers on when the task retries before its run, or when its process is lost."""
    found = read_headers({**FULL.as_dict(), "retries": retries}, "task")
    assert found == (FULL if is_waiter else FULL.without_waiting())


def test_a_waiter_of_an_older_version_does_not_say_at_which_retry_it_waits():
    assert read_headers({"rlock_attempts": 2, "retries": 1}, "task").is_waiter


@pytest.mark.parametrize("deeper", [None, [1], "text", 7, {"mine": 1}])
def test_a_message_without_our_headers_has_the_empty_ones(deeper):
    assert read_headers({"id": "x", "headers": deeper}, "task") is NO_HEADERS


HUGE, NAN, INFINITE = 10**400, float("nan"), float("inf")
WRONG = {
    "rlock_options": [[1], [], "x", 7, True, {"bogus": 1}, {1: 2}, {"": 1}, {"x" * 10_000_000: 1}],
    "rlock_waits_for": [7, ["x"], {}, True, "x" * 1001],
}
WRONG_NUMBERS = ["x", [1], {}, True, -1, 1.5, INFINITE, NAN, HUGE]
WRONG_OPTIONS = {
    "ttl": ["x", None, -1, INFINITE, NAN, HUGE, 1e-9],
    "hold_at_least": [1e9, -HUGE, [1], {"a": 1}],
    "busy": ["x" * 10_000_000, "often", ["skip"]],
    "key": ["{a:>700000000}", "{a:.1000}", ["{a:٩٩٩٩}"], "x" * 501, "{a}:" * 11, ["x"] * 101, [["x"]], {}],
}
NUMBERS = ["rlock_attempts", "rlock_unavailable", "rlock_redelivery", "rlock_since", "rlock_retries"]
CASES = [(name, value) for name in NUMBERS for value in WRONG_NUMBERS]
CASES += [(name, value) for name, values in WRONG.items() for value in values]
CASES += [("rlock_options", {name: value}) for name, values in WRONG_OPTIONS.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda value: repr(value)[:40])
def test_a_wrong_header_is_an_error_with_a_short_text_and_nothing_else_is_used(name, value):
    """Semantics 16."""
    found = read_headers({"rlock_attempts": 1, "rlock_options": {"ttl": 5}, name: value}, "proj.sync")
    assert found == LockHeaders(error=found.error)
    assert "lock_" in str(found.error)
    assert len(str(found.error)) < 1000


def test_only_this_workers_own_delivery_is_trusted():
    """A message can carry the same values, but not the same type."""
    delivery = Delivery("ab12", 1.0, sends_events=True)
    assert delivery_of({"rlock_delivery": pickle.loads(pickle.dumps(delivery))}) == delivery
    for forged in (json.loads(json.dumps(delivery)), "ab12", {"name": "ab12"}, 7, None):
        assert delivery_of({"rlock_delivery": forged}) is None
