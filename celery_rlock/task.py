"""`LockedTask`: a Celery task that runs under its lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Task, states
from celery.utils import uuid

import celery_rlock.release  # noqa: F401 - connects the release handler
from celery_rlock import listeners, policy, publish, redelivery, settings, signals
from celery_rlock.call import Call
from celery_rlock.core.execution import running
from celery_rlock.core.waiting import patient, wait
from celery_rlock.errors import LockNotHeld, LockUnavailable
from celery_rlock.heir import heir_of
from celery_rlock.hold import Hold, current_lock, holding
from celery_rlock.lost import watched
from celery_rlock.options import Options
from celery_rlock.plan import Plan
from celery_rlock.waiter import WAITER_HEADERS, waited
from celery_rlock.worker import steps

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult, EagerResult

    from celery_rlock.core.replies import Busy
    from celery_rlock.core.scripts import Scripts

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

    _lock_plan: Plan | None

    #: STARTED is stored by us, when the run has its lock: a copy must not store it over how its task ended.
    _lock_track_started = False

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        cls._lock_plan = Plan.of(cls, app)
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

    def apply_async(  # noqa: PLR0917 - as Celery has it
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """As Celery's, and with `lock_…` options for this call."""
        options |= {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        send = super().apply_async
        plan = self._lock_plan
        if plan is None:
            return send(args, kwargs, task_id, **options)
        plan, options = plan.for_call(options)
        if not publish.is_unique(self, plan, options):
            return send(args, kwargs, task_id, **options)
        message = publish.Message(tuple(args or ()), kwargs or {}, task_id or uuid(), options)
        return publish.publish_once(
            self, plan, message, lambda: send(message.args, message.kwargs, message.task_id, **options)
        )

    def apply(self, *args: Any, **options: Any) -> EagerResult[Any]:
        """As Celery's, and with `lock_…` options for this call."""
        if self._lock_plan is not None:
            _, options = self._lock_plan.for_call(options)
        return super().apply(*args, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scripts = settings.server(self.app)
        call = Call(self, args, kwargs)
        if self._lock_plan is None:
            return call.run()
        plan = self._lock_plan.for_headers(call.header)
        with running(call.execution):
            return _run_locked(call, plan, scripts)


def _run_locked(call: Call, plan: Plan, scripts: Scripts) -> Any:
    names = [scripts.name(key) for key in plan.keys_of(call.args, call.kwargs)]
    leases = tuple(call.execution.lease(scripts, name, str(call.task.name)) for name in names)
    until_postrun = plan.options.until == "postrun" and call.traced
    hold = call.hold = Hold(call.execution, leases, until_postrun=until_postrun)
    try:
        if plan.options.until == "start":
            publish.free_queued(scripts, names, call.execution.owner.task_id)
        else:
            _acquire(call, plan.options, hold, scripts)
        with holding(hold), watched(call, hold, plan.options):
            _store_started(call)
            return _run(call, plan.options, hold)
    finally:
        signals.run_ended.send(sender=call.task, call=call)


def _acquire(call: Call, options: Options, hold: Hold, scripts: Scripts) -> None:
    """Get in, or end this attempt by an exception; without the lock only where the options say so."""
    try:
        busy = _wait_for(call, options, hold, scripts)
        if busy is None:
            redelivery.drop_if_ended(call, hold)
    except LockUnavailable as error:
        policy.on_unavailable(call, options, error)
        return
    if busy is not None:
        policy.on_busy(call, options, busy)
    if options.max_hold is not None:
        hold.renew_for(options.max_hold)
    seconds = waited(call, max(hold.tokens.values()))
    call.forget(*WAITER_HEADERS)
    listeners.attend(call.request, seconds)
    signals.lock_acquired.send(sender=call.task, lock=hold, request=call.request, waited=seconds)


def _wait_for(call: Call, options: Options, hold: Hold, scripts: Scripts) -> Busy | None:
    # Without a message to schedule again, waiting here is the only way to retry; a lease is the bound.
    in_place = not call.by_message
    longest = max(options.wait, options.ttl) if in_place and options.busy == "retry" else options.wait
    attempt: Callable[[], Busy | None] = partial(hold.enter, options.ttl, options.replicas)
    if longest > 0:
        attempt = policy.telling_of_the_first_busy(call, attempt)
    if in_place and options.unavailable == "retry":
        attempt = patient(attempt, scripts)
    return wait(attempt, scripts, call.execution.owner, longest)


def _store_started(call: Call) -> None:
    if call.by_message and call.task._lock_track_started and not call.request.ignore_result:  # noqa: SLF001
        meta = {"pid": os.getpid(), "hostname": call.request.hostname}
        call.task.backend.store_result(call.request.id, meta, states.STARTED, request=call.request)


def _run(call: Call, options: Options, hold: Hold) -> Any:
    try:
        result = call.run()
    except BaseException as error:
        hold.heir = heir_of(call.task.app, options, hold, error)
        raise
    hold.heir = heir_of(call.task.app, options, hold, None)
    return result
