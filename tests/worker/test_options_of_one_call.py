"""Lock options for one call: `apply_async(…, lock_busy="skip")`, `signature.set(…)`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import chain, group, states
from celery.exceptions import TaskRevokedError

from celery_rlock import ConfigurationError, LockBusy
from tests.worker.awaiting import await_state, kill_child

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
def test_a_wrong_option_is_refused_before_the_task_is_published(
    proj, name, queue, messages, holder, options, said, how
):
    """Semantics 16: a clear error, no message, no lock."""
    with pytest.raises(ConfigurationError, match=said):
        if how == "apply_async":
            proj.once.apply_async((name,), queue=queue, **options)
        else:
            proj.once.s(name).set(queue=queue, **options).apply_async()
    assert (messages(queue), holder(name)) == ([], None)


def test_a_call_may_be_unique_though_its_task_is_not(proj, name, queue, messages, holder):
    ids = {proj.work.apply_async((name,), queue=queue, lock_from="publish").id for _ in range(2)}
    assert len(ids) == len(messages(queue)) == 1
    assert holder(name) == f"queued:{ids.pop()}"


def test_a_call_may_be_published_without_the_lock_though_its_task_is_unique(
    proj, name, queue, messages, holder
):
    for _ in range(2):
        proj.once.apply_async((name,), queue=queue, lock_from="run")
    assert len(messages(queue)) == 2
    assert holder(name) is None


def test_the_options_of_one_call_are_not_those_of_the_next(proj, name, queue, messages):
    proj.work.apply_async((name,), queue=queue, lock_ttl=5, headers={"mine": 1})
    proj.work.apply_async((name,), queue=queue, headers={"mine": 2})
    last, first = [message["headers"] for message in messages(queue)]
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
            await_state(waits, states.RETRY)
        assert waits.get(timeout=20)["keys"] == [name]

    def test_the_call_chooses_the_lease(self, proj, name):
        assert 30 < proj.tells.apply_async((name,), lock_ttl=500).get(timeout=20)["lease"] <= 500

    def test_the_call_chooses_the_key(self, proj, name):
        one = proj.tells.apply_async((name,), lock_key="one:{name}").get(timeout=20)
        two = proj.tells.apply_async((name,), lock_key=("b:{name}", "a:{name}")).get(timeout=20)
        assert (one["keys"], two["keys"]) == ([f"one:{name}"], [f"a:{name}", f"b:{name}"])

    def test_the_options_survive_the_tasks_own_retries(self, proj, name):
        options = {"lock_ttl": 500, "lock_key": "other:{name}"}
        done = proj.tells.apply_async((name, 2), **options).get(timeout=20)
        assert (done["retries"], done["keys"]) == (2, [f"other:{name}"])
        assert 30 < done["lease"] <= 500

    def test_the_options_survive_busy_retries(self, proj, name, hold):
        with hold(f"other:{name}"):
            result = proj.tells.apply_async((name,), lock_key="other:{name}", lock_ttl=500)
            await_state(result, states.RETRY)
        done = result.get(timeout=20)
        assert (done["retries"], done["keys"]) == (0, [f"other:{name}"])
        assert 30 < done["lease"] <= 500

    def test_the_attempts_of_a_call_follow_its_own_backoff(self, proj, name, hold):
        """They do not wait for the end of the holder's lease, which is far longer."""
        options = {"lock_max_attempts": 2, "lock_backoff": 0.5, "lock_jitter": False}
        with hold(name, 120), pytest.raises(LockBusy):
            proj.tells.apply_async((name,), **options).get(timeout=20)

    def test_the_parent_frees_the_key_that_the_call_chose(
        self, proj, fleet, name, await_start, await_free, holder
    ):
        """Semantics 6: the parent knows the options of the call too."""
        proj.once.apply_async((name, 60), lock_key="other:{name}")
        pid = await_start(name)["pid"]
        assert holder(f"other:{name}")
        kill_child(proj.app, fleet, pid)
        await_free(f"other:{name}", timeout=15)


@pytest.fixture
def eager(proj):
    proj.app.conf.task_always_eager = True
    yield
    proj.app.conf.task_always_eager = False


@pytest.mark.usefixtures("eager")
class TestEagerly:
    def test_the_options_of_an_eager_call_count(self, proj, name, hold):
        """Another thread holds the lock, because this one would enter it again."""
        with ThreadPoolExecutor(1) as other:
            other.submit(hold(name).acquire).result()
            with pytest.raises(LockBusy):
                proj.tells.apply_async((name,), lock_busy="fail").get()
        assert proj.tells.apply_async((name,), lock_key="other:{name}").get()["keys"] == [f"other:{name}"]

    def test_the_options_of_an_applied_signature_count(self, proj, name):
        for call in (proj.tells.si(name), chain(proj.tells.si(f"{name}-1"), proj.tells.si(name))):
            last = call.tasks[-1] if hasattr(call, "tasks") else call
            last.set(lock_key="other:{name}")
            assert call.apply().get()["keys"] == [f"other:{name}"]

    def test_a_wrong_option_is_refused(self, proj, name):
        for call in (proj.tells.apply_async, proj.tells.apply):
            with pytest.raises(ConfigurationError, match="did you mean 'lock_busy'"):
                call((name,), lock_bussy="skip")

    def test_the_options_survive_a_retry(self, proj, name):
        done = proj.tells.apply_async((name, 2), lock_key="other:{name}").get()
        assert (done["retries"], done["keys"]) == (2, [f"other:{name}"])

    def test_a_unique_task_runs_each_time(self, proj, name, holder, records):
        """The first run has ended before the second call, so that is no duplicate."""
        for _ in range(2):
            proj.once.delay(name).get()
        assert len(records(name)) == 4
        assert holder(name) is None
