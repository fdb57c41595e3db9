"""Semantics 10: a copy of the holder's message learns how the holder's run ended."""

from __future__ import annotations

import pytest

from celery_rlock.server.lock_server import DONE_MEMORY_MS
from tests.redis.conftest import DONE, LOCK, TOKEN, UNACKED


def test_a_redelivery_finds_the_lock_busy_and_marks_the_holder(verbs, script_client):
    """Semantics 10."""
    verbs.acquire("1:a")
    assert verbs.acquire("2:a")[0] == 0
    assert script_client.hget(LOCK, "@redelivered") == "1"


def test_another_task_leaves_no_mark(verbs, script_client):
    verbs.acquire("1:a")
    verbs.acquire("2:b")
    verbs.acquire("2:xa")
    assert not script_client.hexists(LOCK, "@redelivered")


@pytest.mark.parametrize(
    ("holder", "caller"), [("1:a", "2.1.0:a"), ("1.1.0:a", "2:a"), ("1.0.1:a", "2.1.0:a")]
)
def test_a_retry_or_a_replacement_of_the_holders_task_leaves_no_mark(verbs, script_client, holder, caller):
    """Semantics 10: it has the same task id, but it is another message."""
    verbs.acquire(holder)
    assert verbs.acquire(caller)[0] == 0
    assert not script_client.hexists(LOCK, "@redelivered")


def test_a_redelivered_retry_leaves_its_mark(verbs, script_client):
    """Semantics 10."""
    verbs.acquire("1.1.0:a")
    assert verbs.acquire("2.1.0:a")[0] == 0
    assert script_client.hget(LOCK, "@redelivered") == "1"


def test_an_early_release_frees_the_lock_without_a_redelivery(verbs, script_client):
    verbs.acquire("1:a")
    assert verbs.release("1:a", early=1) == 1
    assert script_client.keys() == [TOKEN]


def test_an_early_release_keeps_the_lock_for_a_redelivery(verbs, script_client):
    """Semantics 10: until the end is known."""
    verbs.acquire("1:a")
    verbs.acquire("2:a")
    assert verbs.release("1:a", early=1) == 2
    assert script_client.hget(LOCK, "1:a") == "1"
    assert verbs.release("1:a") == 1
    assert script_client.keys() == [TOKEN]


def test_a_finished_task_tells_its_redeliveries(verbs, script_client):
    """Semantics 10: when that run ends the copy is dropped."""
    verbs.acquire("1:a")
    assert verbs.redelivery("a") == 1
    assert verbs.finish("1:a") == 1
    assert not script_client.exists(LOCK)
    assert 0 < script_client.pttl(DONE) <= DONE_MEMORY_MS
    assert verbs.redelivery("a") == 2
    assert int(script_client.get(TOKEN)) > 0


def test_a_finished_task_without_a_redelivery_leaves_no_record(verbs, script_client):
    verbs.acquire("1:a")
    assert verbs.finish("1:a") == 1
    assert script_client.keys() == [TOKEN]


def test_only_the_owner_records_the_end_of_its_task(verbs, script_client):
    """Semantics 3."""
    assert verbs.finish("1:a") == 0
    verbs.acquire("1:a")
    verbs.redelivery("a")
    assert verbs.finish("2:a") == -1
    assert script_client.hget(LOCK, "1:a") == "1"
    assert not script_client.exists(DONE)


def test_a_redelivery_of_a_task_that_does_not_run_is_unknown(verbs, script_client):
    assert verbs.redelivery("a") == 0
    verbs.acquire("1:b")
    assert verbs.redelivery("a") == 0
    assert not script_client.hexists(LOCK, "@redelivered")


def test_a_look_without_a_mark_changes_nothing(verbs, script_client):
    verbs.acquire("1:a")
    assert verbs.redelivery("a", mark=0) == 1
    assert verbs.release("1:a", early=1) == 1


def test_a_message_that_was_published_again_is_told_of_while_the_first_is_not_acknowledged(
    verbs, script_client
):
    """Semantics 10: the first may be delivered again, after the second has run."""
    verbs.unacked("1")
    assert 0 < script_client.pttl(UNACKED) <= 60000
    verbs.acquire("2:a")
    assert verbs.release("2:a", early=1, done=(DONE, UNACKED)) == 2
    assert verbs.finish("2:a", republished=True) == 1
    assert verbs.redelivery("a") == 2


@pytest.mark.parametrize("when", ["before the run", "during the run", "after the run"])
def test_a_message_that_was_published_again_leaves_nothing_when_the_first_is_acknowledged(
    verbs, script_client, when
):
    verbs.unacked("1")
    if when == "before the run":
        verbs.acked("1")
    verbs.acquire("2:a")
    if when == "during the run":
        verbs.acked("1")
    early = verbs.release("2:a", early=1, done=(DONE, UNACKED))
    assert early == (2 if when == "after the run" else 1)
    if early == 2:
        verbs.finish("2:a", republished=True)
        verbs.acked("1")
    assert script_client.keys() == [TOKEN]


def test_each_delivery_that_published_its_message_again_must_be_acknowledged(verbs, script_client):
    """Semantics 10: the worker of the first died, that of the second did not."""
    verbs.unacked("1")
    verbs.unacked("2")
    verbs.acked("2")
    verbs.acquire("3:a")
    assert verbs.finish("3:a", republished=True) == 1
    assert verbs.redelivery("a") == 2


def test_what_is_known_of_a_redelivery_outlives_an_acknowledgement(verbs, script_client):
    """Semantics 10: the message surely has another delivery, so its end is told for the full time."""
    verbs.unacked("1")
    verbs.acquire("2:a")
    verbs.redelivery("a")
    verbs.finish("2:a", republished=True)
    verbs.acked("1")
    assert verbs.redelivery("a") == 2
