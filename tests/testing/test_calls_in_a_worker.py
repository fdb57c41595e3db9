"""What a message of a locked task does in a worker that is a thread of this process. All is in memory.

`tests/worker` shows the same with real workers. The tests here are quick, and `tests/mutants` can change the
code that they run.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest
from celery import states
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_rlock import ConfigurationError, LockBusy, LockedTask, LockUnavailable, RLock, settings
from celery_rlock.options.headers import read_headers
from celery_rlock.running.reschedule import CAN_BE_WOKEN
from celery_rlock.server.owner import Owner
from celery_rlock.signals import lock_acquired, lock_busy, lock_lost, lock_released
from celery_rlock.testing import busy, lost, memory_locks, unavailable
from tests.support.processes import wait_until

SOON = 20
WAITS_IN_LINE = pytest.mark.skipif(
    not CAN_BE_WOKEN, reason="before Celery 5.7 a worker does not watch its scheduled tasks"
)


@pytest.fixture
def app(bare_app):
    bare_app.conf.update(
        rlock_ttl=30,
        rlock_backoff=0.05,
        rlock_backoff_max=0.2,
        broker_transport_options={"polling_interval": 0.01},
        task_acks_late=False,
    )
    with memory_locks(app=bare_app):
        yield bare_app


@pytest.fixture
def told_busy():
    """What each signal `lock_busy` has told."""
    told = []

    def note(**what):
        told.append(what)

    lock_busy.connect(note)
    yield told
    lock_busy.disconnect(note)


@contextmanager
def worker(app, concurrency=2):
    """A worker with threads. It must know its tasks before it starts."""
    is_over = threading.Event()

    def wake():
        while not is_over.wait(0.01):
            with suppress(Exception):  # it is closing its connection
                running.timer.call_after(0, lambda: None)
                app.control.broadcast("ping")

    with start_worker(app, pool="threads", concurrency=concurrency, perform_ping_check=False) as running:
        yield running
        # Without these messages it looks two times for two seconds whether there is one, before it ends.
        state.should_terminate = 0
        threading.Thread(target=wake, daemon=True).start()
    is_over.set()


def task(app, **options):
    """Registers a locked task; the function gets `self`."""
    options = {"base": LockedTask, "bind": True, "shared": False, "lock_key": "k", **options}
    return app.task(**options)


def get(result):
    wait_until(result.ready, timeout=SOON, what="the result")
    return result.get()


def await_state(result, wanted):
    wait_until(lambda: result.state == wanted, timeout=SOON, what=f"the state {wanted}")


def test_a_busy_task_waits_and_keeps_its_id(app):
    """Semantics 9."""

    @task(app)
    def work(self, number):
        return number, self.request.id, self.request.retries, self.lock.depth

    with worker(app):
        with busy("k"):
            result = work.delay(7)
            await_state(result, states.RETRY)
            assert isinstance(result.result, LockBusy)
        assert tuple(get(result)) == (7, result.id, 0, 1)
    assert work.lock_of().state == "free"


def test_a_task_may_be_skipped_fail_or_be_rejected(app, told_busy):
    """Semantics 9."""

    @task(app, name="work", lock_busy="skip")
    def work(self): ...

    with worker(app), busy("k") as holder:
        skipped, failed = work.delay(), work.apply_async(lock_busy="fail")
        rejected = work.apply_async(lock_busy="reject")
        with pytest.raises(TaskRevokedError, match=f"skipped: .*{holder}"):
            get(skipped)
        with pytest.raises(LockBusy, match="'k' is held by"):
            get(failed)
        wait_until(lambda: len(told_busy) == 3, timeout=SOON, what="the rejected task")
    assert skipped.state == states.REVOKED
    seen = [(told["error"].key, told["action"], told["request"].id, told["waited"]) for told in told_busy]
    assert sorted(seen, key=lambda found: found[1]) == [
        ("k", action, result.id, 0.0)
        for action, result in (("fail", failed), ("reject", rejected), ("skip", skipped))
    ]


def test_a_callable_decides_what_a_busy_task_does(app):
    asked = []

    def decide(work, error):
        asked.append((work.name, error.key))
        return "skip" if len(asked) == 1 else "perhaps"

    @task(app, name="work", lock_busy=decide)
    def work(self): ...

    with worker(app, 1), busy("k"):
        with pytest.raises(TaskRevokedError):
            get(work.delay())
        with pytest.raises(
            ConfigurationError, match=r"lock_busy of task work must return one of .* 'perhaps'"
        ):
            get(work.delay())
    assert asked == [("work", "k")] * 2


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_task_with_attempts_fails_at_the_last_of_them(app, attempts, told_busy):
    @task(app, name="work", lock_max_attempts=attempts)
    def work(self): ...

    with worker(app), busy("k"), pytest.raises(LockBusy):
        get(work.delay())
    actions = [told["action"] for told in told_busy]
    # A task that waits in line asks from there, and starts for its last attempt only.
    assert actions[-1] == "fail"
    assert min(attempts - 1, 1) <= len(actions[:-1]) <= attempts - 1
    assert set(actions[:-1]) <= {"retry"}


def test_a_waiter_whose_backoff_is_over_when_its_message_arrives_looks_again(app):
    """Without an event loop, the timer's own thread was faster than Celery, and the task waited for ever."""

    @task(app, name="work", lock_key="k:{number}", lock_max_attempts=2, lock_backoff=0.0001)
    def work(self, number): ...

    with worker(app), busy(*(f"k:{number}" for number in range(20))):
        for result in [work.delay(number) for number in range(20)]:
            with pytest.raises(LockBusy):
                get(result)


def test_a_task_may_wait_in_place(app, told_busy):
    waits = []

    @task(app, name="work", lock_wait=SOON)
    def work(self):
        return self.request.delivery_info["redelivered"], self.request.id

    def note_waited(waited, **_):
        waits.append((len(told_busy), waited))

    lock_acquired.connect(note_waited)
    try:
        with worker(app):
            with busy("k"):
                result = work.delay()
                wait_until(lambda: told_busy, timeout=SOON, what="the task to wait")
                time.sleep(0.05)
            assert get(result)[1] == result.id
    finally:
        lock_acquired.disconnect(note_waited)
    assert [(told["action"], told["waited"]) for told in told_busy] == [("wait", 0.0)]
    [(told_before, waited)] = waits
    assert told_before == 1
    assert waited >= 0.05


def test_a_task_that_waited_in_place_in_vain_ends_as_it_says(app, told_busy):
    @task(app, name="work", lock_wait=0.2, lock_busy="fail")
    def work(self): ...

    with worker(app), busy("k"), pytest.raises(LockBusy):
        get(work.delay())
    actions = [told["action"] for told in told_busy]
    assert actions == ["wait", "fail"]


def test_the_users_own_retry_starts_without_busy_attempts(app):
    """Semantics 9."""

    @task(app, name="work", max_retries=1)
    def work(self):
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return dict(self.request.headers or {}), read_headers(vars(self.request), self.name).attempts

    with worker(app):
        with busy("k"):
            result = work.delay()
            await_state(result, states.RETRY)
        assert get(result) == [{}, 0]


def test_a_run_learns_how_long_its_task_has_waited(app):
    """Also in earlier deliveries of its message."""
    times = []

    @task(app, name="work")
    def work(self): ...

    lock_acquired.connect(note := lambda waited, **_: times.append(waited), weak=False)
    try:
        with worker(app):
            get(work.delay())
            with busy("k"):
                result = work.delay()
                await_state(result, states.RETRY)
                time.sleep(0.2)
            get(result)
    finally:
        lock_acquired.disconnect(note)
    assert times[0] == 0
    assert times[1] >= 0.2


def test_the_errback_of_a_skipped_task_is_not_called(app):
    """Semantics 9: it has not failed."""
    called = []

    @task(app, name="work", lock_busy="skip")
    def work(self): ...

    @app.task(shared=False, name="failed")
    def failed(*_):
        called.append("failed")

    @app.task(shared=False, name="last")
    def last():
        called.append("last")

    with worker(app, 1), busy("k"):
        with pytest.raises(TaskRevokedError):
            get(work.apply_async(link_error=failed.si()))
        get(last.delay())
    assert called == ["last"]


def test_a_handler_enters_the_lock_that_its_task_still_has(app):
    """Semantics 2."""
    depths = []

    class Handled(LockedTask):
        abstract = True

        def on_success(self, *_):
            with RLock("k", timeout=0) as lock:
                depths.append(lock.depth)

    @task(app, name="work", base=Handled, lock_until="postrun")
    def work(self): ...

    with worker(app, 1):
        get(work.delay())
        wait_until(lambda: work.lock_of().state == "free", timeout=SOON, what="the end")
    assert depths == [2]


def test_without_a_lock_server_a_task_waits_fails_or_runs(app):
    """Semantics 12."""

    @task(app, name="work")
    def work(self):
        return self.lock.held, self.lock.token

    with worker(app, 1):
        with unavailable():
            waits, failed = work.delay(), work.apply_async(lock_unavailable="fail")
            ran = work.apply_async(lock_unavailable="run")
            assert list(get(ran)) == [False, 0]
            with pytest.raises(LockUnavailable, match="task work"):
                get(failed)
            await_state(waits, states.RETRY)
        held, token = get(waits)
        assert held
        assert token > 0


@pytest.mark.parametrize("until", ["start", "return", "postrun"])
def test_until_when_a_unique_task_has_its_key(app, until):
    """Semantics 13."""
    seen = []

    @task(app, name="work", lock_from="publish", lock_until=until)
    def work(self):
        seen.append((work.lock_of().state, self.lock.held))

    @task(app, name="after", lock_key="other", lock_busy="fail")
    def after(self, _):
        seen.append((work.lock_of().state, self.lock.held))

    def note(sender=None, **_):
        seen.append(f"{sender.name} released")

    lock_released.connect(note, weak=False, dispatch_uid="test")
    try:
        with worker(app, 1):
            result = work.apply_async(link=after.s())
            get(result)
            wait_until(
                lambda: after.lock_of().state == "free" and seen[-1] == "after released",
                timeout=SOON,
                what="the end",
            )
    finally:
        lock_released.disconnect(dispatch_uid="test")
    runs = [found for found in seen if not isinstance(found, str)]
    assert runs == [("free" if until == "start" else "held", until != "start"), ("free", True)]
    assert work.lock_of().state == "free"


def test_a_unique_task_keeps_its_key_while_it_retries(app):
    """Semantics 13: also if the retry has other arguments, then it does not."""
    told, states_seen = threading.Event(), []

    @task(app, name="work", lock_key="shop:{shop}", lock_from="publish", max_retries=3)
    def work(self, shop, to=None):
        if self.request.retries == 0:
            raise self.retry(countdown=1, args=(to or shop,), kwargs={})
        return shop

    with worker(app, 1):
        same, other = work.delay("a"), work.delay("b", to="c")
        await_state(same, states.RETRY)
        await_state(other, states.RETRY)
        wait_until(lambda: work.lock_of("b").state == "free", timeout=SOON, what="the key to be free")
        states_seen = [work.lock_of(shop).state for shop in "abc"]
        assert work.delay("a").id == same.id
        assert [get(same), get(other)] == ["a", "c"]
        told.set()
    assert states_seen == ["queued", "free", "free"]


def test_a_key_rests_after_its_run(app):
    @task(app, name="work", lock_hold_at_least=60, lock_busy="fail")
    def work(self):
        return self.lock.token

    with worker(app, 1):
        assert get(work.delay()) > 0
        assert work.lock_of().state == "resting"
        with pytest.raises(LockBusy, match="rest"):
            get(work.delay())
        assert 50 < work.lock_of().holders[0].lease_left <= 60


def test_a_place_of_several_rests_after_its_run(app):
    @task(app, name="work", lock_limit=2, lock_hold_at_least=60)
    def work(self): ...

    with worker(app, 1):
        get(work.delay())
        wait_until(lambda: work.lock_of().holders[0].state == "resting", timeout=SOON, what="the rest")
        assert len(work.lock_of().holders) == 1


@WAITS_IN_LINE
def test_a_retry_waits_for_the_run_that_published_it(app):
    """Semantics 10: whatever `lock_busy` says."""
    runs = []

    @task(app, name="work", lock_busy="skip", max_retries=3)
    def work(self):
        runs.append(self.request.retries)
        if self.request.retries == 0:
            retry = self.retry(countdown=0, throw=False)
            wait_until(lambda: work.lock_of().waiters, timeout=SOON, what="the retry to wait")
            raise retry

    with worker(app):
        get(work.delay())
    assert runs == [0, 1]


def test_attempts_without_a_lock_server_are_counted(app):
    @task(app, name="work")
    def work(self):
        return read_headers(vars(self.request), self.name).unavailable_attempts

    with worker(app):
        with unavailable():
            result = work.delay()
            await_state(result, states.RETRY)
        assert get(result) >= 1


def test_a_run_that_is_being_retried_is_not_interrupted(app):
    """Semantics 8: Celery would drop its message."""

    @task(app, name="work", lock_lost="abort", max_retries=1)
    def work(self):
        if self.request.retries == 0:
            retry = self.retry(countdown=0, throw=False)
            lost()
            time.sleep(0.1)
            raise retry
        return "ran"

    with worker(app):
        assert get(work.delay()) == "ran"


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_run_that_may_have_been_redelivered_keeps_its_lock_until_its_end_is_known(app, acks_late):
    """Semantics 10: half of the visibility timeout is over, so another delivery may be on its way."""
    depths = []

    class Handled(LockedTask):
        abstract = True

        def on_success(self, *_):
            with RLock("k", timeout=0) as lock:
                depths.append(lock.depth)

    @task(app, name="work", base=Handled, acks_late=acks_late)
    def work(self):
        time.sleep(0.7)

    app.conf.broker_transport_options = {"visibility_timeout": 1.2, "polling_interval": 0.01}
    with worker(app, 1):
        get(work.delay())
        wait_until(lambda: work.lock_of().state == "free", timeout=SOON, what="the end")
    assert depths == [2 if acks_late else 1]


def test_a_lost_lock_ends_a_run_in_a_thread(app):
    """Semantics 8."""
    started, errors = threading.Event(), []

    @task(app, name="work", lock_lost="abort")
    def work(self):
        started.set()
        give_up = time.monotonic() + SOON
        while time.monotonic() < give_up:
            time.sleep(0.005)

    def note(error, held, lock, **_):
        errors.append((error.key, 0 < held < 60, lock.lost))

    lock_lost.connect(note, weak=False, dispatch_uid="test")
    try:
        with worker(app):
            result = work.delay()
            assert started.wait(SOON)
            lost(work)
            with pytest.raises(Exception, match="took it away"):
                get(result)
    finally:
        lock_lost.disconnect(dispatch_uid="test")
    assert errors == [("k", True, True)]


@WAITS_IN_LINE
def test_a_redelivered_message_of_a_task_that_runs_waits_and_is_dropped(app):
    """Semantics 10."""
    started, go_on, runs = threading.Event(), threading.Event(), []

    @task(app, name="work", acks_late=True)
    def work(self):
        runs.append(self.request.delivery_info["redelivered"])
        started.set()
        assert go_on.wait(SOON)
        return len(runs)

    with worker(app):
        result = work.delay()
        assert started.wait(SOON)
        work.apply_async(task_id=result.id, delivery_info={"redelivered": True})
        wait_until(lambda: work.lock_of().waiters, timeout=SOON, what="the second delivery to wait")
        assert result.state != states.RETRY
        go_on.set()
        assert get(result) == 1
        wait_until(lambda: not work.lock_of().waiters, timeout=SOON, what="the second delivery to end")
        following = work.delay()
        assert get(following) == 2
    assert runs == [False, False]


def test_a_redelivered_message_runs_if_no_run_has_the_lock(app):
    @task(app, name="work", acks_late=True)
    def work(self):
        return self.request.delivery_info["redelivered"]

    with worker(app):
        assert get(work.apply_async(delivery_info={"redelivered": True})) is True


@pytest.mark.parametrize("duplicate", ["existing", "replace"])
def test_one_call_is_pending_behind_the_run(app, duplicate):
    """Semantics 19."""
    started, go_on, runs = threading.Event(), threading.Event(), []

    @task(app, name="work", lock_from="publish", lock_pending=1, lock_duplicate=duplicate, lock_key="k")
    def work(self, number):
        runs.append(number)
        started.set()
        assert go_on.wait(SOON)

    with worker(app, 3):
        first = work.delay(1)
        assert started.wait(SOON)
        second, third = work.delay(2), work.delay(3)
        go_on.set()
        get(first)
        get(third)
        if duplicate == "replace":
            with pytest.raises(TaskRevokedError, match=f"superseded by {third.id}"):
                get(second)
        else:
            assert second.id == third.id
    assert runs == [1, 3 if duplicate == "replace" else 2]
    assert work.lock_of().state == "free"


def test_a_call_that_is_superseded_does_not_run_without_a_lock_either(app):
    """Semantics 20: `lock_until="start"` needs no lock for the run."""
    runs, started, go_on = [], threading.Event(), threading.Event()

    @task(app, name="hold", lock_key="other")
    def hold(self):
        started.set()
        assert go_on.wait(SOON)

    @task(app, name="work", lock_from="publish", lock_until="start", lock_duplicate="replace")
    def work(self, number):
        runs.append(number)
        return self.lock.held

    with worker(app, 1):
        hold.delay()
        assert started.wait(SOON)
        older, newer = work.delay(1), work.delay(2)
        go_on.set()
        assert get(newer) is False
        with pytest.raises(TaskRevokedError, match=f"superseded by {newer.id}"):
            get(older)
    assert runs == [2]


def test_the_users_own_call_method_runs_inside_the_lock_and_once(app):
    seen, runs = [], []

    class Around(LockedTask):
        abstract = True

        def __call__(self, *args, **kwargs):
            seen.append(self.lock.held)
            return super().__call__(*args, **kwargs)

    @task(app, name="work", base=Around)
    def work(self, number):
        runs.append((number, self.lock.depth))
        return self.request.id, self.request.called_directly, number or work(1)[2]

    with worker(app, 1):
        result = work.delay(0)
        assert get(result) == [result.id, False, 1]
    assert seen == [True, True]
    assert runs == [(0, 1), (1, 2)]


def test_a_newer_call_ends_the_older_one(app):
    """Semantics 20."""
    started, newer = threading.Event(), []

    @task(app, name="work", lock_busy="replace")
    def work(self, number):
        started.set()
        give_up = time.monotonic() + SOON
        while number == 1 and time.monotonic() < give_up:
            time.sleep(0.005)
        return number

    with worker(app):
        older = work.delay(1)
        assert started.wait(SOON)
        newer = work.delay(2)
        with pytest.raises(TaskRevokedError, match=newer.id):
            get(older)
        assert get(newer) == 2
        assert older.state == states.REVOKED


def test_a_task_has_started_when_it_has_its_lock(app):
    @task(app, name="work", track_started=True)
    def work(self):
        return self.app.backend.get_task_meta(self.request.id)

    with worker(app):
        with busy("k"):
            result = work.delay()
            await_state(result, states.RETRY)
        found = get(result)
        assert found["status"] == states.STARTED
        assert set(found["result"]) == {"pid", "hostname"}
        ignored = work.apply_async(ignore_result=True)
        wait_until(lambda: work.lock_of().state == "free", timeout=SOON, what="the end")
        assert ignored.state == states.PENDING


def test_a_run_has_its_lock_for_max_hold_at_most(app):
    """Semantics 7: but for the ttl in any case."""

    @task(app, name="work", lock_ttl=0.3, lock_max_hold=0.6)
    def work(self):
        wait_until(lambda: self.lock.lost, timeout=SOON, what="the end of the lease")
        return self.lock.held

    @task(app, name="long", lock_key="long", lock_max_hold=60, lock_ttl=0.3)
    def long(self):
        time.sleep(1)
        return self.lock.held

    with worker(app):
        assert [get(work.delay()), get(long.delay())] == [False, True]


def test_a_task_takes_all_of_its_keys_or_none(app):
    @task(app, name="work", lock_key=["a:{a}", "b:{b}"], lock_limit=[1, 2])
    def work(self, a, b):
        lock = self.lock
        lock.extend(100)
        leases = [holder.lease_left for holder in work.lock_of(a, b).holders]
        return lock.keys, lock.key, lock.token, lock.slot, lock.tokens, lock.slots, lock.depth, min(leases)

    with worker(app):
        keys, key, token, slot, tokens, slots, depth, left = get(work.delay(1, 2))
        assert (list(keys), key, depth, slot) == (["a:1", "b:2"], "a:1, b:2", 1, 0)
        assert list(tokens) == list(slots) == ["a:1", "b:2"]
        assert token == tokens["a:1"] > 0
        assert left > 90
        with busy("b:2"):
            result = work.delay(1, 2)
            await_state(result, states.RETRY)
            assert work.lock_of(1, 3).state == "free"
            assert get(work.delay(1, 3))[0] == ["a:1", "b:3"]
        assert get(result)[2] > token


def test_a_lock_that_a_task_leaves_behind_is_released(app, caplog):
    @task(app, name="work")
    def work(self):
        lock = RLock("other")
        lock.acquire()
        lock.acquire()

    with worker(app, 1):
        get(work.delay())
        wait_until(lambda: not RLock("other").locked(), timeout=SOON, what="the lock to be free")
    assert "task work never released lock 'other'" in caplog.text


def test_a_task_that_does_not_get_to_its_run_frees_its_key(app):
    class Picky(LockedTask):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            if "bad" in args:
                raise ValueError(args)

    @task(app, name="work", base=Picky, lock_from="publish", lock_pending=1)
    def work(self, number):
        return number

    @task(app, name="once", base=Picky, lock_key="once", lock_from="publish")
    def once(self, number):
        return number

    with worker(app, 1):
        for each in (work, once):
            with pytest.raises(ValueError):
                get(each.delay("bad"))
            wait_until(lambda each=each: each.lock_of(1).state == "free", timeout=SOON, what="the key")
            assert get(each.delay("good")) == "good"


def test_a_retry_of_a_pending_task_is_queued(app):
    """Semantics 19: a call that comes meanwhile is the same as the retry."""

    @task(app, name="work", lock_from="publish", lock_pending=1, max_retries=3)
    def work(self):
        if self.request.retries == 0:
            raise self.retry(countdown=0.5)
        return "ran"

    with worker(app, 1):
        first = work.delay()
        await_state(first, states.RETRY)
        wait_until(lambda: work.lock_of().state != "held", timeout=SOON, what="the end of the first run")
        assert work.delay().id == first.id
        assert get(first) == "ran"
        following = work.delay()
        assert following.id != first.id
        assert get(following) == "ran"


def test_a_retry_without_a_place_comes_all_the_same(app):
    """The lock server went away during the run."""
    outage = ExitStack()

    @task(app, name="work", lock_from="publish", lock_pending=1, max_retries=3)
    def work(self):
        if self.request.retries == 0:
            outage.enter_context(unavailable(app=app))
            raise self.retry(countdown=0)
        return "ran"

    with worker(app, 1), outage:
        result = work.delay()
        await_state(result, states.RETRY)
        wait_until(lambda: not state.active_requests, timeout=SOON, what="the end of the first run")
        outage.close()
        assert get(result) == "ran"


def test_a_pending_call_that_fails_gives_up_its_place(app):
    @task(app, name="work", lock_from="publish", lock_pending=1, lock_max_attempts=1)
    def work(self):
        return "ran"

    with worker(app, 1):
        with busy("k"):
            failed = work.delay()
            with pytest.raises(LockBusy):
                get(failed)
            wait_until(lambda: not state.active_requests, timeout=SOON, what="the end")
        following = work.delay()
        assert following.id != failed.id
        assert get(following) == "ran"


@pytest.mark.parametrize("lost_by", ["callable", "warn"])
def test_a_run_may_go_on_after_a_loss(app, lost_by):
    started, go_on, told = threading.Event(), threading.Event(), []

    def tell(work, error):
        told.append((work.name, error.key))

    @task(app, name="work", lock_lost=tell if lost_by == "callable" else "warn")
    def work(self):
        started.set()
        assert go_on.wait(SOON)
        return self.lock.lost

    with worker(app):
        result = work.delay()
        assert started.wait(SOON)
        lost(work)
        go_on.set()
        assert get(result) is True
    assert told == [("work", "k")] * (lost_by == "callable")


def test_a_newer_call_ends_the_older_ones_that_wait(app):
    """Semantics 20."""
    go_on = threading.Event()

    @task(app, name="hold", lock_busy="retry")
    def hold(self):
        assert go_on.wait(SOON)

    @task(app, name="work", lock_busy="replace")
    def work(self, number):
        return number

    with worker(app, 3):
        holds = hold.delay()
        wait_until(lambda: hold.lock_of().state == "held", timeout=SOON, what="the holder")
        older = work.delay(1)
        await_state(older, states.RETRY)
        newer = work.delay(2)
        await_state(newer, states.RETRY)
        go_on.set()
        get(holds)
        assert get(newer) == 2
        with pytest.raises(TaskRevokedError, match=newer.id):
            get(older)


def test_the_retry_of_a_run_that_is_replaced_does_not_come(app):
    """Semantics 20."""
    started, runs = threading.Event(), []

    @task(app, name="work", lock_busy="replace", max_retries=9)
    def work(self, number):
        runs.append(number)
        started.set()
        try:
            give_up = time.monotonic() + SOON
            while number == 1 and time.monotonic() < give_up:
                time.sleep(0.005)
        except BaseException as error:
            raise self.retry(countdown=0) from error
        return number

    with worker(app):
        older = work.delay(1)
        assert started.wait(SOON)
        newer = work.delay(2)
        assert get(newer) == 2
        with pytest.raises(TaskRevokedError):
            get(older)
    assert runs == [1, 2]


@WAITS_IN_LINE
def test_a_waiter_runs_when_the_lease_of_a_dead_holder_has_ended(app):
    """Semantics 7: no release wakes it."""
    app.conf.update(rlock_backoff=60, rlock_backoff_max=60)

    @task(app, name="work")
    def work(self):
        return self.request.id

    lock_server = settings.redis_server(app)
    dead = Owner("w", "d", "t")
    with worker(app):
        lock_server.acquire(lock_server.redis_keys("k"), dead, 1, 1.0, "work", attempt="1")
        result = work.delay()
        wait_until(lambda: work.lock_of().waiters, timeout=SOON, what="the task to wait")
        assert get(result) == result.id


@WAITS_IN_LINE
def test_tasks_that_wait_here_run_in_the_order_in_which_they_came(app):
    """Semantics 9."""
    runs = []

    @task(app, name="work")
    def work(self, number):
        runs.append(number)

    with worker(app, 3):
        with busy("k"):
            results = []
            for number in range(5):
                results.append(work.delay(number))
                wait_until(lambda: len(work.lock_of().waiters) == len(results), timeout=SOON, what="a waiter")
        for result in results:
            get(result)
    assert runs == list(range(5))


@WAITS_IN_LINE
@pytest.mark.parametrize("end", ["revoke", "expire"])
def test_a_waiter_that_will_not_run_gives_up_its_place(app, end):
    runs = []

    @task(app, name="work")
    def work(self, number):
        runs.append(number)

    with worker(app):
        with busy("k"):
            first = work.apply_async((1,), expires=1 if end == "expire" else 60)
            wait_until(lambda: work.lock_of().waiters, timeout=SOON, what="the first to wait")
            second = work.delay(2)
            wait_until(lambda: len(work.lock_of().waiters) == 2, timeout=SOON, what="the second to wait")
            if end == "revoke":
                app.control.revoke(first.id)
            wait_until(lambda: len(work.lock_of().waiters) == 1, timeout=SOON, what="one waiter")
            assert [waiter.task_id for waiter in work.lock_of().waiters] == [second.id]
        get(second)
        with pytest.raises(TaskRevokedError):
            get(first)
    assert runs == [2]


@WAITS_IN_LINE
def test_a_revoked_unique_task_frees_its_key(app):
    @task(app, name="work", lock_from="publish")
    def work(self): ...

    with worker(app):
        result = work.apply_async(countdown=300)
        assert work.lock_of().state == "queued"
        app.control.revoke(result.id)
        wait_until(lambda: work.lock_of().state == "free", timeout=SOON, what="the key to be free")


@WAITS_IN_LINE
def test_a_worker_that_ends_gives_its_waiters_back(app):
    @task(app, name="work")
    def work(self):
        return self.request.hostname

    with busy("k"):
        with worker(app):
            result = work.delay()
            wait_until(lambda: work.lock_of().waiters, timeout=SOON, what="the task to wait")
        assert not work.lock_of().waiters
    with worker(app):
        assert get(result)


@WAITS_IN_LINE
def test_a_worker_shows_and_releases_the_locks_of_its_tasks(app):
    go_on = threading.Event()

    @task(app, name="work")
    def work(self):
        assert go_on.wait(SOON)

    with worker(app, 2):
        inspect = app.control.inspect(timeout=0.3)
        first = work.delay()
        wait_until(lambda: work.lock_of().state == "held", timeout=SOON, what="the first run")
        second = work.delay()
        wait_until(lambda: work.lock_of().waiters, timeout=SOON, what="the second to wait")
        owner = work.lock_of().holders[0].owner
        [answer] = inspect._request("locks").values()
        [held], [waiting] = answer["held"], answer["waiting"]
        owner = owner.partition("/")[2]  # the worker's name in a test is another one in its pool
        assert (held["id"], held["key"], held["owner"].partition("/")[2]) == (first.id, "k", owner)
        assert (waiting["id"], waiting["key"], waiting["attempts"]) == (second.id, "k", 1)
        assert 0 <= time.time() - waiting["since"] < 60
        [nothing] = inspect._request("locks", key="other").values()
        assert nothing == {"held": [], "waiting": []}
        [one] = inspect._request("locks", task_id=second.id).values()
        assert (one["held"], [row["id"] for row in one["waiting"]]) == ([], [second.id])
        [[reply]] = [
            each.values()
            for each in app.control.broadcast("rlock_release", {"key": "k"}, reply=True, timeout=0.3)
        ]
        assert owner in reply["ok"]
        wait_until(
            lambda: [h.task_id for h in work.lock_of().holders] == [second.id],
            timeout=SOON,
            what="the second run",
        )
        go_on.set()
        get(first)
        get(second)
