"""A worker shuts down or is killed: its lock becomes free, and another worker runs its message."""

from __future__ import annotations

import signal

import pytest

from tests.support.fleet import redelivered_after

SUCCESSORS = "after-shutdowns"
SHORT_LEASE = 3  # of `short_lease_victim`
OTHER_POOLS = ["threads", "gevent", "solo"]


@pytest.fixture(scope="module")
def spare(start_fleet, broker):
    """The worker that survives. It runs the successors and the messages that the other workers leave."""
    conf = redelivered_after(2, broker.kind)
    with start_fleet(1, concurrency=2, queues=[SUCCESSORS], conf=conf) as [spare]:
        yield spare


@pytest.fixture
def shut_down(start_fleet, spare, broker, queue, end_run):
    """Ends a worker that runs the victim by `cause`, and lets the spare worker take over its queue."""

    def run(how, cause, *, conf=None, pool="prefork", take_over=True, **options):
        def cause_and_take_over(victim):
            cause(victim)
            if take_over:
                control("add_consumer")

        with start_fleet(1, pool=pool, concurrency=1, queues=[queue], conf=conf) as [worker]:
            return end_run(
                how,
                worker,
                cause=cause_and_take_over,
                queue=queue,
                successors=SUCCESSORS,
                pool=pool,
                **options,
            )

    def control(command):
        getattr(broker.control, command)(queue, destination=[spare.nodename], reply=True, timeout=10, limit=1)

    yield run
    control("cancel_consumer")


def stop_by(sig, *, code=None, within=20):
    def stop(victim):
        victim.worker.signal(sig)
        exited_with = victim.worker.wait(within)
        assert code is None or exited_with == code

    return stop


def kill(victim):
    victim.worker.kill()


def test_warm_shutdown_lets_the_run_end(shut_down):
    """Semantics 5: warm shutdown."""
    ending = shut_down(
        "warm shutdown",
        stop_by(signal.SIGTERM, code=0),
        task="late_victim",
        args=("loop", 2),
        completions=1,
    )
    assert ending.free_after < 5
    assert ending.completed == 1


@pytest.mark.slow
def test_cold_shutdown_frees_the_lock(shut_down):
    """Semantics 5: cold shutdown. With early ack Celery loses the task."""
    ending = shut_down("cold shutdown, early ack", stop_by(signal.SIGQUIT))
    assert ending.free_after < 5
    assert ending.completed == 0


def test_cold_shutdown_frees_the_lock_and_gives_a_late_ack_message_back(shut_down):
    """Semantics 5: cold shutdown. With late ack the task runs again, in another worker."""
    ending = shut_down("cold shutdown", stop_by(signal.SIGQUIT), task="late_victim", completions=1)
    assert ending.free_after < 5
    assert ending.completed == 1


@pytest.mark.slow
def test_cold_shutdown_in_a_c_call(shut_down):
    """Semantics 6: the child handles no signal. It is killed or ends its call first; runs never overlap."""
    ending = shut_down(
        "cold shutdown in a C call",
        stop_by(signal.SIGQUIT),
        task="late_victim",
        args=("in C", 5),
        completions=1,
    )
    assert ending.free_after < 10
    assert ending.completed == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "timeout", "seconds"),
    [("soft shutdown, run ends in time", 3, 1.5), ("soft shutdown, run too long", 1, 60)],
    ids=["run ends in time", "run too long"],
)
def test_soft_shutdown_lets_a_short_run_end_and_gives_a_long_one_back(shut_down, how, timeout, seconds):
    """Semantics 5: `worker_soft_shutdown_timeout`, longer and shorter than the run."""
    ending = shut_down(
        how,
        stop_by(signal.SIGQUIT),
        conf={"worker_soft_shutdown_timeout": timeout},
        task="late_victim",
        args=("loop", seconds),
        completions=1,
    )
    assert ending.free_after < 5
    assert ending.completed == 1


def test_a_killed_worker_frees_its_lock_when_the_lease_ends(shut_down):
    """Semantics 7: the lock is free after `lock_ttl` at the latest, and the task completes once."""
    ending = shut_down(f"main kill -9, lease {SHORT_LEASE} s", kill, task="short_lease_victim", completions=1)
    assert ending.free_after < SHORT_LEASE + 2
    assert ending.completed == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "conf", "run"),
    [
        ("worker_max_tasks_per_child=1", {"worker_max_tasks_per_child": 1}, "loop"),
        ("worker_max_memory_per_child", {"worker_max_memory_per_child": 1000}, "large"),
    ],
    ids=["max tasks", "max memory"],
)
def test_a_child_that_is_replaced_after_its_task_frees_its_lock_once(shut_down, how, conf, run):
    """Semantics 5 and 6: the run ends, then the child; its successor does not wait."""
    ending = shut_down(
        how, lambda victim: None, conf=conf, task="late_victim", args=(run, 1.5), completions=1
    )
    assert ending.free_after < 5
    assert ending.completed == 1


@pytest.mark.slow
@pytest.mark.parametrize("pool", OTHER_POOLS)
def test_a_killed_worker_of_another_pool_frees_its_lock_when_the_lease_ends(shut_down, pool):
    """Semantics 7: threads, gevent and solo have no children that could be killed alone."""
    ending = shut_down(
        f"main kill -9, lease {SHORT_LEASE} s", kill, pool=pool, task="short_lease_victim", take_over=False
    )
    assert ending.free_after < SHORT_LEASE + 2
    assert ending.completed == 0


@pytest.mark.slow
@pytest.mark.parametrize("pool", OTHER_POOLS)
def test_warm_shutdown_of_another_pool_lets_the_run_end(shut_down, pool):
    """Semantics 5: warm shutdown."""
    ending = shut_down(
        "warm shutdown",
        stop_by(signal.SIGTERM, code=0),
        pool=pool,
        task="late_victim",
        args=("loop", 1.5),
        completions=1,
        take_over=False,
    )
    assert ending.free_after < 5
    assert ending.completed == 1


@pytest.mark.slow
def test_revoke_with_terminate_on_gevent_frees_the_lock(shut_down):
    """Semantics 5: Celery kills the greenlet, which releases its lock on its way out."""

    def revoke(victim):
        victim.client.control.revoke(victim.id, terminate=True)

    ending = shut_down("revoke, terminate", revoke, pool="gevent", take_over=False)
    assert ending.free_after < 5
    assert ending.completed == 0
