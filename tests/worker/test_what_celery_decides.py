"""What the lock cannot change, because Celery or the broker decides it; docs/semantics.md tells it."""

from __future__ import annotations

import time

from celery import states

from tests.support.processes import wait_until
from tests.worker.awaiting import SOON, await_state


def test_before_start_runs_on_every_busy_attempt(proj, fleet, name, hold, records):
    """Celery calls it before the task's `__call__`, where the lock is taken."""
    with hold(name):
        result = proj.preparing.delay(name)
        wait_until(lambda: len(records(name, "before_start")) >= 2, timeout=SOON, what="a second attempt")
        assert not records(name, "start")
    result.get(timeout=SOON)
    assert len(records(name, "before_start")) >= 3
    assert len(records(name, "start")) == 1


def test_send_task_ignores_the_options_of_a_call(proj, fleet, name, hold):
    """`send_task` does not know the task's class, so the task's own `lock_busy` applies."""
    with hold(name):
        result = proj.app.send_task(proj.work.name, (name, 0), lock_busy="skip")
        await_state(result, states.RETRY)
    assert result.get(timeout=SOON)["id"] == result.id


def test_publishing_the_id_of_a_running_task_again_is_dropped(proj, fleet, name, records, waiters, tell):
    """It cannot be told from a redelivered message, whatever its arguments are."""
    first = proj.work.apply_async((name, 0, True), task_id=f"twice-{name}")
    wait_until(lambda: records(name), timeout=SOON, what="the run")
    proj.work.apply_async((name, 0), task_id=first.id)
    waiters.await_count(name, 1)
    tell(name)
    wait_until(lambda: not waiters(name), timeout=SOON, what="the second message to leave")
    time.sleep(0.3)
    assert len(records(name, "start")) == 1


def test_a_waiter_that_is_revoked_by_a_stamp_ends_when_its_turn_comes(
    send, publisher, fleet, name, hold, waiters, starts
):
    stamp = {"stamped_headers": ["batch"], "batch": name}
    with hold(name):
        revoked = send("work", name, **stamp)
        waiters.await_count(name, 1)
        last = send("work", name)
        waiters.await_count(name, 2)
        revoke_by_stamp(publisher, fleet, name)
        time.sleep(0.5)
        assert revoked.state == states.RETRY
    assert last.get(timeout=SOON) == last.id
    await_state(revoked, states.REVOKED)
    assert starts(name) == [last.id]


def test_the_key_of_a_unique_task_that_is_revoked_by_a_stamp_is_kept_until_its_eta(
    proj, publisher, fleet, name, holder, await_free
):
    """Revoked by its id, it frees the key about a second later."""
    stamp = {"stamped_headers": ["batch"], "batch": name}
    sent = proj.once.apply_async((name,), countdown=5, **stamp)
    eta = time.time() + 5
    revoke_by_stamp(publisher, fleet, name)
    time.sleep(max(0, eta - 2 - time.time()))
    assert holder(name) == f"queued:{sent.id}"
    await_free(name)
    assert sent.state == states.REVOKED


def revoke_by_stamp(app, fleet, value):
    names = [worker.nodename for worker in fleet]
    options = {"destination": names, "reply": True, "timeout": 5, "limit": len(names)}
    wait_until(
        lambda: len(app.control.revoke_by_stamped_headers({"batch": value}, **options)) == len(names),
        timeout=SOON,
        what="every worker to know of the stamp",
    )
