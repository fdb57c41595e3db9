"""Runs a call under its lock: acquire, run, release."""

from __future__ import annotations

import os
from typing import Any

from celery import states

from celery_rlock import signals
from celery_rlock.core.execution import running
from celery_rlock.core.waiting import wait
from celery_rlock.errors import LockUnavailable
from celery_rlock.options.headers import proven_since
from celery_rlock.options.options import Options
from celery_rlock.options.plan import Plan
from celery_rlock.running import busy as policy
from celery_rlock.running import redelivery
from celery_rlock.running.call import Call
from celery_rlock.running.lost import watched
from celery_rlock.running.pending_place import PendingPlace
from celery_rlock.running.releasing import free_queued, queue_retry, release_after_run, successors_of
from celery_rlock.running.replaced import LOOK_EVERY, end_if_newer_call, ended_if_replaced, may_be_replaced
from celery_rlock.running.reschedule import waited
from celery_rlock.running.task_lock import CallLock, holding
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Busy, Place


def run_locked(call: Call, plan: Plan, lock_server: LockServer) -> Any:
    """Run the call under its lock, or end it as its options say."""
    plan = plan.for_message(call.headers)
    try:
        return _run_locked(call, plan, lock_server)
    finally:
        call.keep_execution()


def _run_locked(call: Call, plan: Plan, lock_server: LockServer) -> Any:
    with running(call.execution):
        all_keys = plan.redis_keys(lock_server, *call.arguments)
        limits = plan.limits_of(*call.arguments)
        leases = tuple(call.execution.lease(lock_server, keys, str(call.task.name)) for keys in all_keys)
        until_postrun = plan.options.until == "postrun" and call.traced
        lock = call.lock = CallLock(call.execution, leases, limits, until_postrun=until_postrun)
        if call.by_message and may_be_replaced(plan.options):
            lock.renew_every(LOOK_EVERY)
        lock.since_header = proven_since(call.headers, lock_server, call.execution.owner.task_id, all_keys)
        if plan.options.pending_places and call.traced:
            owner = Owner(call.execution.owner.worker, call.execution.owner.delivery, call.request.id)
            call.pending = PendingPlace(str(call.task.name), owner, plan.options, lock_server, all_keys)
        try:
            if plan.options.until == "start" and call.pending is not None:
                _begin_without_lock(call, plan.options, call.pending)
            elif plan.options.until == "start":
                free_queued(lock_server, all_keys, call.execution.owner.task_id)
            else:
                _acquire(call, plan.options, lock, lock_server)
            with holding(call.task_lock), ended_if_replaced(call), watched(call, lock, plan.options):
                _store_started(call)
                return _run(call, plan.options, lock)
        finally:
            release_after_run(call)


def _acquire(call: Call, options: Options, lock: CallLock, lock_server: LockServer) -> None:
    """Take the lock, or end this attempt with an exception. Returns without it only if the options say so."""
    busy = None
    try:
        busy = _wait_for(call, options, lock, lock_server)
        redelivery.drop_if_ended(call, lock)
        if call.pending is not None:
            policy.end_if_superseded(
                call, call.pending.begin() if busy is None else call.pending.superseded_by()
            )
        if busy is None:
            end_if_newer_call(call, options, lock)
    except LockUnavailable as error:
        if busy is None or options.unavailable != "run":  # a task never runs beside an owner that it knows
            policy.on_unavailable(call, options, error)
            return
    if busy is not None:
        policy.on_busy(call, options, busy)
    if options.max_hold is not None:
        lock.renew_for(options.max_hold)
    seconds = waited(call, max(call.task_lock.tokens.values()))
    call.carry(call.headers.without_waiting())
    signals.lock_acquired.send(sender=call.task, lock=call.task_lock, request=call.request, waited=seconds)


def _begin_without_lock(call: Call, options: Options, pending: PendingPlace) -> None:
    """With `lock_until="start"` a call is unique while it is queued, and its run needs no lock."""
    try:
        policy.end_if_superseded(call, pending.begin())
    except LockUnavailable as error:
        policy.on_unavailable(call, options, error)


def _wait_for(call: Call, options: Options, lock: CallLock, lock_server: LockServer) -> Busy | None:
    # Without a message to publish again, waiting here is the only way to retry. A lease is the bound.
    in_place = not call.by_message
    longest = max(options.wait, options.ttl) if in_place and options.busy == "retry" else options.wait

    def attempt(place: Place | None) -> Busy | None:
        return lock.enter(options.ttl, options.replicas, place, hold=options.hold_at_least)

    tries = policy.announcing_the_first_busy(call, attempt) if longest > 0 else attempt
    return wait(tries, lock_server, call.execution.owner, longest)


def _store_started(call: Call) -> None:
    """Store STARTED after acquiring, so that a redelivered message cannot overwrite the final state."""
    if call.by_message and call.task._lock_track_started and not call.request.ignore_result:  # noqa: SLF001
        meta = {"pid": os.getpid(), "hostname": call.request.hostname}
        call.task.backend.store_result(call.request.id, meta, states.STARTED, request=call.request)


def _run(call: Call, options: Options, lock: CallLock) -> Any:
    lock.is_used = True
    try:
        result = call.run()
    except BaseException as error:
        lock.successors = successors_of(call, options, lock, error)
        queue_retry(call, options, lock, error)
        raise
    lock.successors = successors_of(call, options, lock, None)
    return result
