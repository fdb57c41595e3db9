"""`lock_from="publish"`: a task that will not run keeps no key."""

from __future__ import annotations

import os
import signal
import time

import pytest
from celery import states

from tests.support.processes import wait_until
from tests.unique.conftest import REDELIVERY


@pytest.mark.usefixtures("fleet")
class TestFreed:
    def test_when_it_expires_in_the_worker(self, proj, name, await_free, records):
        result = proj.once.apply_async((name,), countdown=3, expires=1)
        wait_until(lambda: result.state == states.REVOKED, timeout=20, what="the expiry")
        await_free(name)
        assert records(name) == []

    def test_when_it_expired_in_the_queue(self, proj, name, idle, holder, await_free, start_fleet):
        result = proj.once.apply_async((name,), queue=idle, expires=1)
        assert holder(name) == f"queued:{result.id}"
        time.sleep(1.2)
        with start_fleet(1, queues=[idle]):
            await_free(name)
            wait_until(lambda: result.state == states.REVOKED, timeout=20, what="the expiry")

    def test_when_it_is_revoked_while_it_waits_for_its_eta(self, proj, name, fleet, holder, await_free):
        result = proj.once.apply_async((name,), countdown=5)
        seen = lambda: any(f"[{result.id}] received" in worker.log for worker in fleet)  # noqa: E731
        wait_until(seen, timeout=20, what="the task in a worker")
        revoke(proj, fleet, result)
        wait_until(lambda: result.state == states.REVOKED, timeout=30, what="the end")
        await_free(name)

    def test_when_it_is_revoked_long_before_its_eta(self, proj, name, fleet, await_free):
        """Its state is REVOKED at once: who publishes it again must not be given that result."""
        result = proj.once.apply_async((name,), countdown=600)
        seen = lambda: any(f"[{result.id}] received" in worker.log for worker in fleet)  # noqa: E731
        wait_until(seen, timeout=20, what="the task in a worker")
        revoke(proj, fleet, result)
        wait_until(lambda: result.state == states.REVOKED, timeout=20, what="the end")
        await_free(name)
        assert proj.once.delay(name).get(timeout=20)["id"] != result.id

    def test_when_it_was_revoked_before_a_worker_saw_it(self, proj, name, idle, await_free, start_fleet):
        with start_fleet(1, queues=[idle]) as fleet:
            task_id = f"id-{name}"
            wait_until(
                lambda: len(proj.app.control.revoke(task_id, reply=True, timeout=2)) >= 1 + 2,
                timeout=20,
                what="every worker to know",
            )
            proj.once.apply_async((name,), queue=idle, task_id=task_id)
            await_free(name)
            assert "Discarding revoked task" in fleet[0].log

    def test_when_it_is_terminated_while_it_runs(self, proj, name, fleet, await_start, await_free, lease_of):
        result = proj.once_killed.delay(name)
        await_start(name)
        proj.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
        await_free(name)

    def test_when_it_fails_before_its_run(self, proj, name, await_free, records):
        result = proj.never_prepared.delay(name)
        with pytest.raises(RuntimeError, match="not prepared"):
            result.get(timeout=20)
        await_free(name)
        assert records(name) == []

    def test_when_its_child_is_killed(self, proj, name, await_start, holder, await_free):
        """Semantics 6: by the parent, long before the lease of 30 s is over."""
        result = proj.once_killed.delay(name)
        pid = await_start(name)["pid"]
        assert not holder(name).startswith("queued:")
        os.kill(pid, signal.SIGKILL)
        await_free(name, timeout=15)
        assert proj.once.delay(name).get(timeout=20)["id"] != result.id

    def test_but_not_for_the_revoked_task_of_another_id(self, proj, name, fleet, holder, idle):
        """Semantics 3: owner-checked."""
        kept = proj.once.apply_async((name,), queue=idle)
        sent = proj.app.send_task(proj.once.name, (name,), countdown=3)
        revoke(proj, fleet, sent)
        said = f"Discarding revoked task: {proj.once.name}[{sent.id}]"
        wait_until(lambda: any(said in worker.log for worker in fleet), timeout=20, what="the end")
        time.sleep(0.5)
        assert holder(name) == f"queued:{kept.id}"


def revoke(proj, fleet, result):
    wait_until(
        lambda: len(proj.app.control.revoke(result.id, reply=True, timeout=2)) >= len(fleet),
        timeout=20,
        what="every worker to know",
    )


@pytest.mark.parametrize("task", ["once", "once_late"])
def test_a_redelivery_of_the_holders_own_message_starts(
    proj, name, idle, start_fleet, holder, records, await_free, task
):
    """Its worker was killed before it started it."""
    conf = {"broker_transport_options": REDELIVERY}
    with start_fleet(1, queues=[idle], conf=conf) as (doomed,):
        result = getattr(proj, task).apply_async((name,), queue=idle, countdown=4)
        wait_until(lambda: f"[{result.id}] received" in doomed.log, timeout=20, what="the delivery")
        doomed.kill()
    assert (records(name), holder(name)) == ([], f"queued:{result.id}")
    with start_fleet(1, queues=[idle], conf=conf):
        assert result.get(timeout=30)["id"] == result.id
        await_free(name)
    assert len(records(name)) == 2


def test_a_run_that_died_with_its_worker_runs_again(
    proj, name, idle, start_fleet, holder, await_start, records
):
    """Semantics 7 and 10: the lease ends the dead one's lock, and the copy of its message starts."""
    conf = {"broker_transport_options": REDELIVERY, "rlock_ttl": 2}
    with start_fleet(1, queues=[idle], conf=conf) as (doomed,):
        result = proj.once_late.apply_async((name, 3), queue=idle)
        await_start(name)
        doomed.kill()
    assert proj.once_late.apply_async((name,), queue=idle).id == result.id or holder(name) is None
    with start_fleet(1, queues=[idle], conf=conf):
        assert result.get(timeout=40)["id"] == result.id
    assert [entry["event"] for entry in records(name)] == ["start", "start", "end"]
