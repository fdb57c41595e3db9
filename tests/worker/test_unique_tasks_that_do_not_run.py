"""`lock_from="publish"`: a task that will not run keeps no key."""

from __future__ import annotations

import time

import pytest
from celery import states

from tests.support.fleet import redelivered_after
from tests.worker.awaiting import await_log, await_state, kill_child, revoke


@pytest.mark.usefixtures("fleet")
class TestTheKeyIsFreed:
    def test_when_the_task_expires_in_the_worker(self, proj, name, await_free, records):
        result = proj.once.apply_async((name,), countdown=1.5, expires=0.5)
        await_state(result, states.REVOKED)
        await_free(name)
        assert records(name) == []

    def test_when_the_task_has_expired_in_the_queue(self, proj, name, queue, holder, await_free, start_fleet):
        result = proj.once.apply_async((name,), queue=queue, expires=0.5)
        assert holder(name) == f"queued:{result.id}"
        time.sleep(0.6)
        with start_fleet(1, queues=[queue]):
            await_free(name)
            await_state(result, states.REVOKED)

    def test_when_the_task_is_revoked_while_it_waits_for_its_eta(self, proj, name, fleet, await_free):
        result = proj.once.apply_async((name,), countdown=3)
        await_log(fleet, f"[{result.id}] received")
        revoke(proj.app, fleet, result)
        await_state(result, states.REVOKED)
        await_free(name)

    def test_when_the_task_is_revoked_long_before_its_eta(self, proj, name, fleet, await_free):
        """Its state is REVOKED at once: the next caller must not be given that result."""
        result = proj.once.apply_async((name,), countdown=600)
        await_log(fleet, f"[{result.id}] received")
        revoke(proj.app, fleet, result)
        await_state(result, states.REVOKED)
        await_free(name)
        assert proj.once.delay(name).get(timeout=20)["id"] != result.id

    def test_when_the_task_was_revoked_before_a_worker_received_it(
        self, proj, name, queue, await_free, doomed
    ):
        revoked = proj.app.AsyncResult(f"id-{name}")
        revoke(proj.app, [doomed], revoked)
        proj.once.apply_async((name,), queue=queue, task_id=revoked.id)
        await_free(name)
        assert "Discarding revoked task" in doomed.log

    def test_when_the_task_is_terminated_while_it_runs(self, proj, name, await_start, await_free):
        result = proj.once.delay(name, 60)
        await_start(name)
        proj.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
        await_free(name)

    def test_when_the_task_fails_before_its_run(self, proj, name, await_free, records):
        result = proj.never_prepared.delay(name)
        with pytest.raises(RuntimeError, match="not prepared"):
            result.get(timeout=20)
        await_free(name)
        assert records(name) == []

    def test_when_the_child_of_the_run_is_killed(self, proj, fleet, name, await_start, holder, await_free):
        """Semantics 6: the parent process frees it, long before the lease of 30 s is over."""
        result = proj.once.delay(name, 60)
        pid = await_start(name)["pid"]
        assert not holder(name).startswith("queued:")
        kill_child(proj.app, fleet, pid)
        await_free(name, timeout=15)
        assert proj.once.delay(name).get(timeout=20)["id"] != result.id

    def test_but_not_when_a_task_of_another_id_is_revoked(self, proj, name, fleet, holder, queue):
        """Semantics 3: the release is owner-checked."""
        kept = proj.once.apply_async((name,), queue=queue)
        sent = proj.app.send_task(proj.once.name, (name,), countdown=1.5)
        revoke(proj.app, fleet, sent)
        await_log(fleet, f"Discarding revoked task: {proj.once.name}[{sent.id}]")
        time.sleep(0.5)
        assert holder(name) == f"queued:{kept.id}"


@pytest.mark.parametrize("task", ["once_late", pytest.param("once", marks=pytest.mark.slow)])
def test_a_redelivered_message_of_the_holder_runs(
    proj, name, queue, start_fleet, holder, records, await_free, task
):
    """Its first worker was killed before the task started."""
    conf = redelivered_after(2)
    with start_fleet(1, queues=[queue], conf=conf) as (doomed,):
        result = getattr(proj, task).apply_async((name,), queue=queue, countdown=3)
        await_log([doomed], f"[{result.id}] received")
        doomed.kill()
    assert (records(name), holder(name)) == ([], f"queued:{result.id}")
    with start_fleet(1, queues=[queue], conf=conf):
        assert result.get(timeout=30)["id"] == result.id
        await_free(name)
    assert len(records(name)) == 2


def test_a_run_that_died_with_its_worker_runs_again(
    proj, name, queue, start_fleet, holder, await_start, records
):
    """Semantics 7 and 10: the lease of the dead run ends, and its redelivered message runs."""
    conf = {**redelivered_after(2), "rlock_ttl": 2}
    with start_fleet(1, queues=[queue], conf=conf) as (doomed,):
        result = proj.once_late.apply_async((name, 3), queue=queue)
        await_start(name)
        doomed.kill()
    assert proj.once_late.apply_async((name,), queue=queue).id == result.id or holder(name) is None
    with start_fleet(1, queues=[queue], conf=conf):
        assert result.get(timeout=40)["id"] == result.id
    assert [entry["event"] for entry in records(name)] == ["start", "start", "end"]
