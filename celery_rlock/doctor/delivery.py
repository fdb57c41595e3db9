"""Checks of how the broker delivers messages to workers, and redelivers them."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock.doctor.findings import Finding, NotChecked, named, warn
from celery_rlock.doctor.setup import Locked, Setup
from celery_rlock.running import redelivery
from celery_rlock.running.reschedule import CAN_BE_WOKEN

_FEW_ETA_TASKS = 100


def check_acks(setup: Setup) -> Iterator[Finding]:
    late = [locked for locked in setup.examined if locked.task.acks_late]
    half = [locked.name for locked in late if not locked.task.reject_on_worker_lost]
    if half:
        yield warn(
            f"{named(half)}: acks_late without reject_on_worker_lost: a run is redelivered when its whole "
            "worker dies, but it fails and is lost when only its pool child is killed (out of memory)",
            "set task_reject_on_worker_lost = True, if run() may run twice",
        )
    early = [locked for locked in setup.examined if not locked.task.acks_late]
    useless = [locked.name for locked in early if locked.task.reject_on_worker_lost]
    if useless:
        yield warn(
            f"{named(useless)}: reject_on_worker_lost has no effect without acks_late: a killed run is lost",
            "set task_acks_late = True too, if run() may run twice",
        )
    lost = [locked.name for locked in early if locked.name not in useless]
    if lost:
        # No worker logs it, because it is Celery's default.
        yield warn(
            f"acks_late is off for {named(lost)}: a run that is killed is lost, and not redelivered",
            "set task_acks_late = True and task_reject_on_worker_lost = True, if run() may run twice; else "
            "leave this check out (--skip acks)",
            at_start=False,
        )


def check_visibility(setup: Setup) -> Iterator[Finding]:
    """A Redis broker redelivers the messages of a killed worker after the visibility timeout."""
    if setup.broker != "redis":
        raise NotChecked("the broker is not Redis; this check knows no other visibility timeout")
    seconds = redelivery.visibility_timeout(setup.app)
    yield from _not_set(setup, seconds)
    yield from _shorter_than_a_wait(setup, seconds)
    yield from _shorter_than_a_run(setup, seconds)


def _not_set(setup: Setup, seconds: float) -> Iterator[Finding]:
    chosen = "visibility_timeout" in (setup.app.conf.broker_transport_options or {})
    if setup.waiting_tasks and not chosen:
        yield warn(
            f"visibility_timeout is not set: the tasks that wait in a worker when it is killed are "
            f"redelivered after {seconds:g} s",
            'set broker_transport_options = {"visibility_timeout": …} to a time that you can accept, the '
            "same for all workers, but longer than the longest run and the longest countdown",
        )


def _shorter_than_a_wait(setup: Setup, seconds: float) -> Iterator[Finding]:
    waiting = [locked for locked in setup.waiting_tasks if _longest_wait(locked) >= seconds]
    if waiting:
        longest = max(map(_longest_wait, waiting))
        yield warn(
            f"visibility_timeout is {seconds:g} s, but {named(locked.name for locked in waiting)} may wait "
            f"{longest:g} s (lock_ttl, lock_wait, lock_backoff_max): their messages are redelivered while "
            "they wait",
            f"set it above {longest:g}, or lower the longest of these options",
        )


def _shorter_than_a_run(setup: Setup, seconds: float) -> Iterator[Finding]:
    running = [locked for locked in setup.examined if _longest_run(setup, locked) >= seconds]
    if running:
        longest = max(_longest_run(setup, locked) for locked in running)
        yield warn(
            f"visibility_timeout is {seconds:g} s, but {named(locked.name for locked in running)} may run "
            f"{longest:g} s: their messages are redelivered while they run, and each redelivery waits",
            f"set it above {longest:g}",
        )


def _longest_wait(locked: Locked) -> float:
    return max(locked.options.ttl, locked.options.wait, locked.options.backoff_max)


def _longest_run(setup: Setup, locked: Locked) -> float:
    """How long the broker may wait for the acknowledgement; 0 if it comes before the run."""
    return max(setup.limits(locked), default=0) if locked.task.acks_late else 0


def check_prefetch(setup: Setup) -> Iterator[Finding]:
    """Waiting tasks are messages with an ETA, which a worker keeps on top of its prefetch count."""
    if not setup.waiting_tasks:
        raise NotChecked("no task is scheduled again when its lock is busy")
    if setup.setting("worker_prefetch_multiplier", "prefetch_multiplier") == 0:
        yield warn(
            "worker_prefetch_multiplier is 0: one worker may take every queued message while other workers "
            "are idle, and all of these are delayed when that worker is killed",
            "set it to 1",
        )
    limit = setup.app.conf.get("worker_eta_task_limit")
    if limit is not None and limit < _FEW_ETA_TASKS:
        yield warn(
            f"worker_eta_task_limit is {limit}: a worker in which that many tasks wait takes no other "
            "message until one of their locks is free",
            f"remove it, or set it well above the number of waiting tasks that you expect, at least "
            f"{_FEW_ETA_TASKS}",
        )


def check_waking(setup: Setup) -> Iterator[Finding]:
    waiting = setup.waiting_tasks
    if not waiting:
        raise NotChecked("no task is scheduled again when its lock is busy")
    if not CAN_BE_WOKEN:
        longest = max(locked.options.backoff_max for locked in waiting)
        yield warn(
            f"a release wakes waiting tasks with Celery 5.7 only; here they retry after up to {longest:g} s",
            "upgrade Celery, or lower lock_backoff_max",
        )
