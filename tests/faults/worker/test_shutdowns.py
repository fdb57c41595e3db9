"""A worker that stops, or is killed whole: its lock is free, and its message is run by another."""

from __future__ import annotations

import signal

import pytest

from tests.faults.fleet import delivered_again_after

SUCCESSORS = "after-shutdowns"
SHORT_LEASE = 3  # of `short_lease_victim`


@pytest.fixture(scope="module")
def spare(start_fleet, broker):
    """The worker that lives on: runs the successors, and what the others left behind."""
    conf = delivered_again_after(2, broker)
    with start_fleet(1, concurrency=2, queues=[SUCCESSORS], conf=conf) as [spare]:
        yield spare


@pytest.fixture
def shut_down(start_fleet, spare, broker, queue, ending_of):
    """Has a worker run the victim, ends it by `cause`, and lets the spare worker take over its queue."""

    def run(ending, cause, *, conf=None, **options):
        def cause_and_take_over(victim):
            cause(victim)
            broker.control.add_consumer(queue, destination=[spare.nodename], reply=True, timeout=10, limit=1)

        with start_fleet(1, concurrency=1, queues=[queue], conf=conf) as [worker]:
            return ending_of(
                ending, worker, cause=cause_and_take_over, queue=queue, successors=SUCCESSORS, **options
            )

    yield run
    broker.control.cancel_consumer(queue, destination=[spare.nodename], reply=True, timeout=10, limit=1)


def stop_by(sig, *, code=None, within=20):
    def stop(victim):
        victim.worker.signal(sig)
        exited_with = victim.worker.wait(within)
        assert code is None or exited_with == code

    return stop


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


def test_cold_shutdown(shut_down):
    """Semantics 5: cold shutdown; with early ack the task is gone, as Celery has it."""
    ending = shut_down("cold shutdown, early ack", stop_by(signal.SIGQUIT))
    assert ending.free_after < 5
    assert ending.completed == 0


def test_cold_shutdown_gives_a_late_ack_message_back(shut_down):
    """Semantics 5: cold shutdown; the task runs again, elsewhere."""
    ending = shut_down("cold shutdown", stop_by(signal.SIGQUIT), task="late_victim", completions=1)
    assert ending.free_after < 5
    assert ending.completed == 1


def test_cold_shutdown_in_a_c_call(shut_down):
    """Semantics 6: the child hears nothing and is killed, or ends its call first: never two at once."""
    ending = shut_down(
        "cold shutdown in a C call",
        stop_by(signal.SIGQUIT),
        task="late_victim",
        args=("in C", 5),
        completions=1,
    )
    assert ending.free_after < 10
    assert ending.completed == 1


def test_soft_shutdown_lets_a_short_run_end(shut_down):
    """Semantics 5: `worker_soft_shutdown_timeout`, longer than the run."""
    ending = shut_down(
        "soft shutdown, run ends in time",
        stop_by(signal.SIGQUIT),
        conf={"worker_soft_shutdown_timeout": 3},
        task="late_victim",
        args=("loop", 1.5),
        completions=1,
    )
    assert ending.free_after < 5
    assert ending.completed == 1


def test_soft_shutdown_ends_a_long_run(shut_down):
    """Semantics 5: `worker_soft_shutdown_timeout`, shorter than the run, which starts again elsewhere."""
    ending = shut_down(
        "soft shutdown, run too long",
        stop_by(signal.SIGQUIT),
        conf={"worker_soft_shutdown_timeout": 1},
        task="late_victim",
        completions=1,
    )
    assert ending.free_after < 5
    assert ending.completed == 1


def test_main_process_killed(shut_down, broker):
    """Semantics 7: free after `lock_ttl` at the latest; the message comes back and runs, once."""
    ending = shut_down(
        f"main kill -9, lease {SHORT_LEASE} s",
        lambda victim: victim.worker.kill(),
        task="short_lease_victim",
        completions=1,
    )
    assert ending.free_after < SHORT_LEASE + 2
    assert ending.completed == 1


@pytest.mark.parametrize(
    ("ending", "conf", "how"),
    [
        ("worker_max_tasks_per_child=1", {"worker_max_tasks_per_child": 1}, "loop"),
        ("worker_max_memory_per_child", {"worker_max_memory_per_child": 1000}, "large"),
    ],
)
def test_a_child_that_is_replaced_after_its_task(shut_down, ending, conf, how):
    """Semantics 5 and 6: the run ends, then the child; nothing is freed twice, nobody waits."""
    ending = shut_down(
        ending, lambda victim: None, conf=conf, task="late_victim", args=(how, 1.5), completions=1
    )
    assert ending.free_after < 5
    assert ending.completed == 1
