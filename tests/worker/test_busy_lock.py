"""What happens to a task that finds its lock busy."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from datetime import datetime, timedelta, timezone

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from celery_rlock import ConfigurationError, LockBusy
from tests.support.processes import wait_until
from tests.worker.awaiting import await_log, await_state, revoke

pytestmark = pytest.mark.usefixtures("fleet")

#: More than the longest backoff of these tasks (0.3 s), so that each waiter has looked at its lock again.
A_BACKOFF = 0.5


def test_retry_runs_the_task_when_the_lock_is_free(proj, name, hold):
    """Semantics 9: the task keeps its id while it waits."""
    with hold(name):
        result = proj.work.delay(name, 0)
        await_state(result, states.RETRY)
        assert isinstance(result.result, LockBusy)
        time.sleep(A_BACKOFF)
    assert result.get(timeout=20)["id"] == result.id


def test_busy_attempts_do_not_count_as_the_users_retries(proj, name, hold):
    """Semantics 9: `max_retries` is untouched, and the user's own retry starts with a clean count."""
    with hold(name):
        result = proj.retrying.delay(name)
        await_state(result, states.RETRY)
        time.sleep(2 * A_BACKOFF)
    fields = result.get(timeout=20)
    assert fields["retries"] == 1
    assert not {"rlock_attempts", "rlock_delivery"} & set(fields["headers"] or {})


def test_autoretry_does_not_see_the_busy_lock(proj, name, hold):
    with hold(name):
        result = proj.autoretrying.delay(name)
        await_state(result, states.RETRY)
        time.sleep(A_BACKOFF)
    assert result.get(timeout=20)["retries"] == 2


def test_a_busy_retry_keeps_everything(proj, name, hold):
    """Semantics 9: id, queue, priority, expires, headers, stamps, limits, links."""
    expires = datetime.now(timezone.utc) + timedelta(minutes=5)
    with hold(name):
        # The worker asks a callable at the end of each backoff, so it publishes this task again and again.
        sent = proj.deciding.apply_async(
            (name,),
            kwargs={},
            priority=3,
            expires=expires,
            headers={"mine": "kept"},
            time_limit=60,
            soft_time_limit=50,
            shadow="shade",
            link=proj.other.si(f"{name}-linked"),
            link_error=proj.note_error.s(),
            stamped_headers=["stamp"],
            stamp="stamped",
        )
        await_state(sent, states.RETRY)
        before, after = await_two_messages(proj.app, sent.id)
    assert after["headers"].pop("rlock_attempts") > before["headers"].pop("rlock_attempts")
    changing = {"eta", "rlock_delivery", "argsrepr", "kwargsrepr", "origin", "timelimit"}
    keep = lambda headers: {k: v for k, v in headers.items() if k not in changing}  # noqa: E731
    assert keep(after["headers"]) == keep(before["headers"])
    headers = after["headers"]
    assert headers["id"] == sent.id
    assert headers["mine"] == "kept"
    assert headers["stamps"] == {"stamp": ["stamped"]} or headers["stamps"] == {"stamp": "stamped"}
    assert datetime.fromisoformat(headers["expires"]) == expires
    assert headers["timelimit"] == [60, 50]
    assert headers["shadow"] == "shade"
    assert after["properties"]["priority"] == 3
    assert after["embed"]["callbacks"][0]["args"] == [f"{name}-linked"]
    assert after["embed"]["errbacks"]
    assert sent.get(timeout=20)["retries"] == 0


def await_two_messages(app, task_id):
    """Two messages of the task with different counts of attempts, as the broker has them unacknowledged."""
    seen = {}

    def two_are_seen():
        for raw in connection.default_channel.client.hvals("unacked"):
            message = json.loads(raw)[0]
            attempts = message["headers"].get("rlock_attempts")
            if message["headers"]["id"] == task_id and attempts is not None:
                embed = json.loads(b64decode(message["body"]))[2]
                seen.setdefault(attempts, {**message, "embed": embed})
        return len(seen) > 1

    with app.connection_for_read() as connection:
        wait_until(two_are_seen, timeout=20, what="a second attempt")
    return list(seen.values())[:2]


def test_a_waiter_that_expires_never_runs(proj, name, hold, records):
    with hold(name):
        result = proj.work.apply_async((name, 0), expires=1)
        await_state(result, states.REVOKED)
    time.sleep(A_BACKOFF)
    assert records(name) == []


def test_a_waiter_that_is_revoked_never_runs(proj, name, hold, records, fleet):
    with hold(name):
        result = proj.work.delay(name, 0)
        await_state(result, states.RETRY)
        revoke(proj.app, fleet, result)
        await_state(result, states.REVOKED)
    time.sleep(A_BACKOFF)
    assert records(name) == []


def test_many_waiters_all_run(proj, name, spans, overlaps):
    """Semantics 1 and 9: no task is lost and no runs overlap."""
    results = [proj.work.delay(name, 0.02) for _ in range(30)]
    for result in results:
        result.get(timeout=60)
    assert len(spans(name)) == 30
    assert overlaps(name) == 0


def test_skip_leaves_a_reason_and_runs_nothing(proj, name, hold, records, fleet):
    """Semantics 11: REVOKED, with the holder's name; log and signal."""
    with hold(name) as lock:
        result = proj.skipping.delay(name)
        with pytest.raises(TaskRevokedError, match=f"is held by {lock.owner}"):
            result.get(timeout=20)
    assert result.state == states.REVOKED
    assert records(name) == []
    assert any(
        f"[{result.id}] is skipped: lock '{name}' is held by {lock.owner}" in worker.log for worker in fleet
    )
    assert proj.skipping.delay(name).get(timeout=20)["held"]


def test_skip_of_a_task_that_ignores_results_stores_none(proj, name, hold, records, fleet):
    with hold(name):
        result = proj.skipping_silently.delay(name)
        await_log(fleet, f"[{result.id}] is skipped")
        time.sleep(0.2)
        assert result.state == states.PENDING
    assert records(name) == []


def test_fail_raises_lock_busy(proj, name, hold):
    with hold(name) as lock, pytest.raises(LockBusy) as error:
        proj.failing.delay(name).get(timeout=20)
    assert (error.value.key, error.value.holder) == (name, lock.owner)
    assert 0 < error.value.lease_left <= 30


def test_reject_does_not_run_the_task(proj, name, hold, records, fleet):
    with hold(name):
        await_log(fleet, f"rejecting[{proj.rejecting.delay(name).id}] reject requeue=False")
    assert records(name) == []


def test_a_callable_chooses_the_policy(proj, name, hold, records):
    with hold(name) as lock:
        await_state(proj.choosing.delay(name), states.REVOKED)
    assert {"key": name, "holder": lock.owner}.items() <= records("chosen")[-1].items()


def test_a_callable_that_chooses_an_unknown_policy_fails_the_task(proj, name, hold):
    with hold(name), pytest.raises(ConfigurationError, match="choosing_badly must return one of"):
        proj.choosing_badly.delay(name).get(timeout=20)


def test_max_attempts_ends_the_waiting(proj, name, hold):
    with hold(name), pytest.raises(LockBusy):
        proj.impatient.delay(name).get(timeout=20)


def test_a_task_with_lock_wait_stays_in_place_until_the_lock_is_free(proj, name, hold, waiters):
    with hold(name):
        result = proj.waits_in_place.delay(name)
        waiters.await_count(name, 1)
        assert result.state == states.PENDING
    assert result.get(timeout=20)["held"]


def test_a_busy_attempt_releases_nothing(proj, name, hold):
    """Semantics 5: a busy attempt that never had the lock releases nothing."""
    with hold(name) as lock:
        waits, skips = proj.work.delay(name, 0), proj.skipping.delay(name)
        await_state(waits, states.RETRY)
        await_state(skips, states.REVOKED)
        time.sleep(2 * A_BACKOFF)
        assert lock.owned()


@pytest.mark.parametrize(
    "key", ["{}", "a}b{c", "line\nbreak", "🔒 emoji", "50% {done}", "x" * 10_000, "\x00", "'; DEL *"]
)
def test_any_text_is_a_key(proj, key, locks):
    """Semantics 15 and 16: braces, newlines, emoji, 10 kB; the lock works, and no other key is touched."""
    before = set(locks.keys("rlock:*"))
    results = [proj.work.delay(key, 0.05) for _ in range(3)]
    tokens = [result.get(timeout=20)["token"] for result in results]
    assert len(set(tokens)) == 3
    left = set(locks.keys("rlock:*")) - before
    assert all(name.endswith((b":token", b":woken")) for name in left)
