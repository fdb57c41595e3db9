"""Options for one call: `apply_async(…, lock_busy="skip")`, `signature.set(…)`."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import chain, group, states
from celery.exceptions import TaskRevokedError

from celery_rlock import ConfigurationError, LockBusy
from tests.support.processes import wait_until

BAD = [
    ({"lock_bussy": "skip"}, "unknown option 'lock_bussy', did you mean 'lock_busy'"),
    ({"lock_nonsense": 1}, "unknown option 'lock_nonsense'"),
    ({"lock_busy": "sometimes"}, "lock_busy of a call of .* must be one of"),
    ({"lock_ttl": 0}, "lock_ttl of a call of .* must be a number of seconds above 0"),
    ({"lock_ttl": "5"}, "lock_ttl of a call of .* must be"),
    ({"lock_queue_ttl": -1}, "lock_queue_ttl of a call of .* must be"),
    ({"lock_from": "send"}, "lock_from of a call of .* must be one of"),
    ({"lock_busy": lambda *_: "skip"}, "cannot be a callable: it travels in the message"),
    ({"lock_key": lambda name: name}, "cannot be a callable"),
    ({"lock_key": ["{name}", lambda name: name]}, "cannot be a callable"),
    ({"lock_key": "account:{nobody}"}, "names 'nobody', but the task has: name"),
    ({"lock_key": []}, "lock_key of a call of .* must be"),
    ({"lock_from": "run", "lock_until": "start"}, 'set lock_from="publish"'),
]


@pytest.mark.parametrize(("options", "said"), BAD)
@pytest.mark.parametrize("how", ["apply_async", "signature"])
def test_what_cannot_work_is_refused_before_anything_is_published(
    proj, name, idle, messages, holder, options, said, how
):
    """Semantics 16: a clear error, nothing published, no lock left."""
    with pytest.raises(ConfigurationError, match=said):
        if how == "apply_async":
            proj.once.apply_async((name,), queue=idle, **options)
        else:
            proj.once.s(name).set(queue=idle, **options).apply_async()
    assert (messages(idle), holder(name)) == ([], None)


def test_a_call_may_be_unique_though_its_task_is_not(proj, name, idle, messages, holder):
    ids = {proj.work.apply_async((name,), queue=idle, lock_from="publish").id for _ in range(2)}
    assert len(ids) == len(messages(idle)) == 1
    assert holder(name) == f"queued:{ids.pop()}"


def test_a_call_may_do_without_though_its_task_is_unique(proj, name, idle, messages, holder):
    for _ in range(2):
        proj.once.apply_async((name,), queue=idle, lock_from="run")
    assert len(messages(idle)) == 2
    assert holder(name) is None


def test_what_one_call_chooses_is_not_the_next_ones(proj, name, idle, messages):
    proj.work.apply_async((name,), queue=idle, lock_ttl=5, headers={"mine": 1})
    proj.work.apply_async((name,), queue=idle, headers={"mine": 2})
    last, first = [message["headers"] for message in messages(idle)]
    assert (first["rlock_options"], first["mine"]) == ({"ttl": 5}, 1)
    assert ("rlock_options" in last, last["mine"]) == (False, 2)


@pytest.mark.usefixtures("fleet")
class TestInAWorker:
    @pytest.mark.parametrize("how", ["apply_async", "signature", "chain", "group"])
    def test_skip_for_this_call_only(self, proj, name, hold, how):
        with hold(name):
            call = proj.tells.si(name).set(lock_busy="skip")
            result = {
                "apply_async": lambda: proj.tells.apply_async((name,), lock_busy="skip"),
                "signature": call.delay,
                "chain": chain(proj.tells.si(f"{name}-free"), call).delay,
                "group": lambda: group(call, proj.tells.si(f"{name}-free"))().results[0],
            }[how]()
            with pytest.raises(TaskRevokedError, match="is held by"):
                result.get(timeout=20)
            waits = proj.tells.delay(name)
            wait_until(lambda: waits.state == states.RETRY, timeout=20, what="the other to wait")
        assert waits.get(timeout=20)["keys"] == [name]

    def test_the_lease_is_the_calls(self, proj, name):
        assert 30 < proj.tells.apply_async((name,), lock_ttl=500).get(timeout=20)["lease"] <= 500

    def test_the_key_is_the_calls(self, proj, name):
        one = proj.tells.apply_async((name,), lock_key="one:{name}").get(timeout=20)
        two = proj.tells.apply_async((name,), lock_key=("b:{name}", "a:{name}")).get(timeout=20)
        assert (one["keys"], two["keys"]) == ([f"one:{name}"], [f"a:{name}", f"b:{name}"])

    def test_they_survive_the_tasks_own_retries(self, proj, name):
        options = {"lock_ttl": 500, "lock_key": "other:{name}"}
        done = proj.tells.apply_async((name, 2), **options).get(timeout=20)
        assert (done["retries"], done["keys"]) == (2, [f"other:{name}"])
        assert 30 < done["lease"] <= 500

    def test_they_survive_busy_retries(self, proj, name, hold):
        with hold(f"other:{name}"):
            result = proj.tells.apply_async((name,), lock_key="other:{name}", lock_ttl=500)
            wait_until(lambda: result.state == states.RETRY, timeout=20, what="the task to wait")
        done = result.get(timeout=20)
        assert (done["retries"], done["keys"]) == (0, [f"other:{name}"])
        assert 30 < done["lease"] <= 500

    def test_the_attempts_that_a_call_allows_follow_its_backoff(self, proj, name, hold):
        """Not the holder's lease, which is far longer."""
        options = {"lock_max_attempts": 2, "lock_backoff": 0.5, "lock_jitter": False}
        with hold(name, 120), pytest.raises(LockBusy):
            proj.tells.apply_async((name,), **options).get(timeout=20)

    def test_a_killed_childs_key_is_the_calls(self, proj, name, await_start, await_free, holder):
        """Semantics 6: the parent knows it too."""
        proj.once_killed.apply_async((name,), lock_key="other:{name}")
        pid = await_start(name)["pid"]
        assert holder(f"other:{name}")
        os.kill(pid, signal.SIGKILL)
        await_free(f"other:{name}", timeout=15)


@pytest.fixture
def eager(proj):
    proj.app.conf.task_always_eager = True
    yield
    proj.app.conf.task_always_eager = False


@pytest.mark.usefixtures("eager")
class TestEagerly:
    def test_they_count(self, proj, name, hold):
        """The lock is held by another thread, for this one would enter it again."""
        with ThreadPoolExecutor(1) as other:
            other.submit(hold(name).acquire).result()
            with pytest.raises(LockBusy):
                proj.tells.apply_async((name,), lock_busy="fail").get()
        assert proj.tells.apply_async((name,), lock_key="other:{name}").get()["keys"] == [f"other:{name}"]

    def test_they_count_for_a_signature_that_is_applied(self, proj, name):
        for call in (proj.tells.si(name), chain(proj.tells.si(f"{name}-1"), proj.tells.si(name))):
            last = call.tasks[-1] if hasattr(call, "tasks") else call
            last.set(lock_key="other:{name}")
            assert call.apply().get()["keys"] == [f"other:{name}"]

    def test_what_cannot_work_is_refused(self, proj, name):
        for call in (proj.tells.apply_async, proj.tells.apply):
            with pytest.raises(ConfigurationError, match="did you mean 'lock_busy'"):
                call((name,), lock_bussy="skip")

    def test_they_survive_a_retry(self, proj, name):
        done = proj.tells.apply_async((name, 2), lock_key="other:{name}").get()
        assert (done["retries"], done["keys"]) == (2, [f"other:{name}"])

    def test_a_unique_task_runs_each_time(self, proj, name, holder, records):
        """Nothing is queued, so nothing is a duplicate."""
        for _ in range(2):
            proj.once.delay(name).get()
        assert len(records(name)) == 4
        assert holder(name) is None
