"""`LockedTask`: a Celery task that runs under its lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Task, states

import celery_rlock.release  # noqa: F401 - connects the release handler
from celery_rlock import policy, redelivery, settings, signals
from celery_rlock.call import Call
from celery_rlock.core.execution import running
from celery_rlock.core.waiting import patient, wait
from celery_rlock.errors import LockBusy, LockNotHeld, LockUnavailable
from celery_rlock.hold import Hold, current_lock, holding
from celery_rlock.key import KeyOf, key_of_call
from celery_rlock.lost import watched
from celery_rlock.options import Options, resolve
from celery_rlock.waiter import ATTEMPTS, SINCE
from celery_rlock.worker import steps

if TYPE_CHECKING:
    from celery import Celery

    from celery_rlock.core.lease import Lease
    from celery_rlock.core.scripts import Busy

    _Task = Task[Any, Any]
else:
    _Task = Task


class LockedTask(_Task):
    """Base class of tasks of which one at a time may run for each key.

    Options are class attributes or arguments of the decorator:
    `@app.task(base=LockedTask, lock_key="account:{account_id}", lock_ttl=60)`.
    """

    abstract = True
    Request = "celery_rlock.worker.request:LockedRequest"

    _lock_plan: tuple[Options, KeyOf] | None

    #: STARTED is stored by us, when the run has its lock: a copy must not store it over how its task ended.
    _lock_track_started = False

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        cls._lock_plan = _plan(cls, app)
        if cls._lock_plan is not None and cls.track_started:
            cls._lock_track_started, cls.track_started = True, False
        steps.install(app)

    @property
    def lock(self) -> Hold:
        """The lock of this execution. LockNotHeld where no locked task is running."""
        hold = current_lock()
        if hold is None:
            raise LockNotHeld(str(self.name), "code outside of any locked task")
        return hold

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scripts = settings.server(self.app)
        call = Call(self, args, kwargs)
        plan = self._lock_plan
        if plan is None:
            return call.run()
        options, key_of = plan
        lease = call.execution.lease(scripts, scripts.name(key_of(args, kwargs)), str(self.name))
        with running(call.execution):
            return _run_locked(call, options, lease)


def _plan(task: type[LockedTask], app: Celery) -> tuple[Options, KeyOf] | None:
    # With app.Task = LockedTask Celery's own tasks (chord_unlock, map, …) would be locked too.
    if str(task.name).startswith("celery."):
        return None
    options = resolve(task, app.conf)
    return options, key_of_call(task, options.key)


def _run_locked(call: Call, options: Options, lease: Lease) -> Any:
    until_postrun = options.until == "postrun" and call.traced
    hold = call.hold = Hold(call.execution, lease, until_postrun=until_postrun)
    try:
        _acquire(call, options, lease)
        with holding(hold), watched(call, hold, lease, options):
            _store_started(call)
            return call.run()
    finally:
        signals.run_ended.send(sender=call.task, call=call)


def _acquire(call: Call, options: Options, lease: Lease) -> None:
    """Get in, or end this attempt by an exception; without the lock only where the options say so."""
    try:
        busy = _wait_for(call, options, lease)
        if busy is None:
            redelivery.drop_if_ended(call, lease)
    except LockUnavailable as error:
        policy.on_unavailable(call, options, error)
        return
    if busy is not None:
        policy.on_busy(call, options, LockBusy(lease.name.key, busy.holder, busy.lease_left), busy.since)
    if options.max_hold is not None and lease.depth == 1:
        lease.renew_until = lease.since + options.max_hold
    call.forget(*ATTEMPTS, SINCE)
    signals.lock_acquired.send(sender=call.task, lock=call.hold)


def _store_started(call: Call) -> None:
    if call.by_message and call.task._lock_track_started and not call.request.ignore_result:  # noqa: SLF001
        meta = {"pid": os.getpid(), "hostname": call.request.hostname}
        call.task.backend.store_result(call.request.id, meta, states.STARTED, request=call.request)


def _wait_for(call: Call, options: Options, lease: Lease) -> Busy | None:
    # Without a message to schedule again, waiting here is the only way to retry; a lease is the bound.
    in_place = not call.by_message
    attempt: Callable[[], Busy | None] = partial(call.execution.enter, lease, options.ttl)
    if in_place and options.unavailable == "retry":
        attempt = patient(attempt)
    longest = max(options.wait, options.ttl) if in_place and options.busy == "retry" else options.wait
    return wait(attempt, lease, longest)
