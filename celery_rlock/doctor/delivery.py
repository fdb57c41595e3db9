"""What the broker gives to workers, and takes back from them."""

from __future__ import annotations

from collections.abc import Iterator

from celery_rlock import redelivery
from celery_rlock.checks.finding import Finding, NotChecked, named, ok, warn
from celery_rlock.checks.setup import Locked, Setup
from celery_rlock.worker.waking import why_not

_FEW_ETA_TASKS = 100


def look_at_acks(setup: Setup) -> Iterator[Finding]:
    late = [one for one in setup.tasks if one.task.acks_late]
    torn = [one.name for one in late if not one.task.reject_on_worker_lost]
    if torn:
        yield warn(
            f"{named(torn)}: acks_late without reject_on_worker_lost: a run is made up for when its whole "
            "worker dies, but is lost, as a failure, when only its pool child is killed (out of memory)",
            "set task_reject_on_worker_lost = True, if run() may run twice",
        )
    early = [one for one in setup.tasks if not one.task.acks_late]
    vain = [one.name for one in early if one.task.reject_on_worker_lost]
    if vain:
        yield warn(
            f"{named(vain)}: reject_on_worker_lost does nothing without acks_late: a run that is killed is "
            "lost",
            "set task_acks_late = True too, if run() may run twice",
        )
    elif early and not torn:
        yield ok(
            f"acks_late is off for {named(one.name for one in early)}: a run that is killed is not made up "
            "for"
        )


def look_at_visibility(setup: Setup) -> Iterator[Finding]:
    """With Redis as the broker, what a killed worker had comes back after the visibility timeout."""
    if setup.broker != "redis":
        raise NotChecked("only a Redis broker has a visibility timeout")
    seconds = redelivery.visibility_timeout(setup.app)
    yield from _too_long(setup, seconds)
    yield from _too_short(setup, seconds)


def _too_long(setup: Setup, seconds: float) -> Iterator[Finding]:
    chosen = "visibility_timeout" in (setup.app.conf.broker_transport_options or {})
    if setup.waiting_tasks and not chosen:
        yield warn(
            f"visibility_timeout is not set: waiters that lie in a worker when it is killed come back after "
            f"{seconds:g} s",
            'set broker_transport_options = {"visibility_timeout": …} to what you can bear, the same for all '
            "workers, but above the longest run and the longest countdown",
        )


def _too_short(setup: Setup, seconds: float) -> Iterator[Finding]:
    waiting = [one for one in setup.waiting_tasks if _longest_wait(one) >= seconds]
    if waiting:
        longest = max(map(_longest_wait, waiting))
        yield warn(
            f"visibility_timeout is {seconds:g} s, but {named(one.name for one in waiting)} may wait "
            f"{longest:g} s (lock_ttl, lock_wait, lock_backoff_max): they are delivered again while they wait"
            "",
            f"set it above {longest:g}, or lower what it is compared with",
        )
    running = [
        one for one in setup.tasks if one.task.acks_late and max(setup.limits(one), default=0) >= seconds
    ]
    if running:
        longest = max(max(setup.limits(one)) for one in running)
        yield warn(
            f"visibility_timeout is {seconds:g} s, but {named(one.name for one in running)} may run "
            f"{longest:g} s: their messages are delivered again meanwhile, and the copies wait",
            f"set it above {longest:g}",
        )


def _longest_wait(one: Locked) -> float:
    return max(one.options.ttl, one.options.wait, one.options.backoff_max)


def look_at_prefetch(setup: Setup) -> Iterator[Finding]:
    """Waiters are messages with an ETA, which a worker keeps beyond its prefetch count."""
    if not setup.waiting_tasks:
        raise NotChecked("no task waits by being scheduled again")
    if setup.setting("worker_prefetch_multiplier", "prefetch_multiplier") == 0:
        yield warn(
            "worker_prefetch_multiplier is 0: one worker may take all that is queued, while others have "
            "nothing to do, and all of it comes late when that one is killed",
            "set it to 1",
        )
    limit = setup.app.conf.get("worker_eta_task_limit")
    if limit is not None and limit < _FEW_ETA_TASKS:
        yield warn(
            f"worker_eta_task_limit is {limit}: a worker that keeps so many waiters takes no other message "
            "until one of their locks is free",
            f"leave it out, or set it well above the waiters that you expect, {_FEW_ETA_TASKS} at least",
        )


def look_at_waking(setup: Setup) -> Iterator[Finding]:
    waiting = setup.waiting_tasks
    reason = why_not(setup.app, setup.broker)
    if waiting and reason is not None:
        longest = max(one.options.backoff_max for one in waiting)
        yield warn(
            f"waiters are not woken, they come back after up to {longest:g} s: {reason}",
            "upgrade Celery, use classic queues for locked tasks, or lower lock_backoff_max",
        )
