"""The request of a locked task, as the worker's parent process sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery.signals import task_revoked
from celery.worker.request import Request

from celery_rlock import settings
from celery_rlock.call import DELIVERY, EVENTS, RECEIVED
from celery_rlock.core.errands import errands
from celery_rlock.core.execution import new_delivery
from celery_rlock.core.log import about, logger
from celery_rlock.core.name import Name, Owner
from celery_rlock.events import sends_task_events
from celery_rlock.plan import Plan
from celery_rlock.publish import free_queued
from celery_rlock.skip import Skipped
from celery_rlock.waiter import Waiting, is_waiter
from celery_rlock.worker import overtaken
from celery_rlock.worker.children import is_child, is_gone
from celery_rlock.worker.reaper import look_after_children
from celery_rlock.worker.revoked import watch
from celery_rlock.worker.waiter import Waiter
from celery_rlock.worker.waking import waker

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo

    _Request = Request
else:
    _Request = object


class LockedRequestMixin(_Request):
    """For a `Request` class of your own: `class MyRequest(LockedRequestMixin, Request)`.

    It names the delivery, so that parent and child know one owner; releases the lock of a child that died
    without; and announces what ended without a run.
    """

    _request_dict: dict[str, Any]
    _context: Any
    _app: Any
    _rlock_child: int | None = None
    _rlock_comes_again = False
    _rlock_goes_on = False
    _rlock_waiter: Waiter | None = None
    rlock_timer_entry: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rlock_delivery = new_delivery()
        self._request_dict[DELIVERY] = self._rlock_delivery
        self._request_dict[RECEIVED] = time.time()
        self._request_dict[EVENTS] = self.task.send_events and sends_task_events(self.eventer)
        if self.delivery_info.get("redelivered"):
            self.announce_copy()

    @property
    def _eta_timer_entry(self) -> Any:
        return self.rlock_timer_entry

    @_eta_timer_entry.setter
    def _eta_timer_entry(self, entry: Any) -> None:
        """Celery (from 5.7 on) has scheduled this request."""
        self.rlock_timer_entry = entry
        this_waker = waker()
        if this_waker is None:
            return
        if is_waiter(self._request_dict):
            self._rlock_waiter = this_waker.add(self)
        elif self._rlock_is_unique:
            watch(self, this_waker.timer)

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        self._rlock_child = pid if is_child(pid) else None
        overtaken.begins(self)
        super().on_accepted(pid, time_accepted)
        if self._rlock_child is not None:
            look_after_children()

    def on_failure(
        self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        died = not return_ok  # the pool says so, not the child
        self._rlock_goes_on = died or isinstance(exc_info.exception, Waiting)
        result = super().on_failure(exc_info, send_failed_event, return_ok)
        if isinstance(exc_info.exception, Skipped):
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
            task_revoked.send(self.task, request=self._context, terminated=False, signum=None, expired=False)
        elif isinstance(exc_info.exception, Waiting) and not overtaken.is_overtaken(self):
            self.send_event("task-retried", exception=str(exc_info.exception), traceback="")
        elif died:
            self._rlock_release_when_dead()
        return result

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._rlock_release_when_dead()

    def terminate(self, pool: Any, signal: Any = None) -> None:
        super().terminate(pool, signal)
        self._rlock_release_when_dead()

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        super().cancel(*args, **kwargs)
        self._rlock_release_when_dead()

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> None:
        super()._announce_revoked(*args, **kwargs)  # type: ignore[misc]
        if self._rlock_waiter is not None:
            self._rlock_waiter.leave()
        self.free_queued()

    def free_queued(self) -> None:
        """Free what it took when it was published; it will not start any more."""
        if self._rlock_is_unique:
            errands.add(f"free the keys of {self.id}", self._rlock_free_queued)

    def announce_copy(self) -> None:
        """This message was delivered twice, or will be: let the run that holds the lock tell its end."""
        errands.add(f"announce a copy of {self.id}", self._rlock_announce_copy)

    def on_broker_lost(self) -> None:
        """It runs, and cannot be acknowledged any more: it will be delivered again."""
        self._rlock_comes_again = True
        self.announce_copy()

    def acknowledge(self) -> None:
        """A run that has ended, and had freed its lock before anybody knew of the copy, could not tell it."""
        super().acknowledge()
        if self._rlock_comes_again and not self._rlock_goes_on:
            errands.add(f"tell that {self.id} has ended", self._rlock_tell_ended)

    def _rlock_release_when_dead(self) -> None:
        """A child that had time to release its lock has done so; to release it again does no harm."""
        pid = self._rlock_child
        if pid is not None:
            self._rlock_child = None
            errands.add(f"release the lock of {self.id}", self._rlock_release, lambda: is_gone(pid))

    def _rlock_release(self) -> None:
        scripts = settings.server(self._app)
        for name in self.rlock_names():
            if scripts.release(name, self.rlock_owner, 0) == 1:
                who = about(name.key, self.rlock_owner, self.id)
                logger.warning("released lock %r of %s, which died", name.key, self.rlock_owner, extra=who)
        self.free_queued()

    @property
    def _rlock_is_unique(self) -> bool:
        plan = self.rlock_plan
        return plan is not None and plan.options.from_ == "publish"

    def _rlock_free_queued(self) -> None:
        free_queued(settings.server(self._app), self.rlock_names(), self.id)

    def _rlock_announce_copy(self) -> None:
        for name in self.rlock_names()[:1]:
            settings.server(self._app).copy(name, self.id, self._context.retries)

    def _rlock_tell_ended(self) -> None:
        for name in self.rlock_names()[:1]:
            settings.server(self._app).tell_ended(name, self.id, self._context.retries)

    @property
    def rlock_owner(self) -> Owner:
        return Owner(self.hostname, self._rlock_delivery, self.id)

    @property
    def rlock_plan(self) -> Plan | None:
        """None for Celery's own tasks."""
        plan: Plan | None = self.task._lock_plan  # type: ignore[attr-defined]  # noqa: SLF001
        return plan and plan.for_headers(self._request_dict.get)

    def rlock_names(self) -> list[Name]:
        plan, scripts = self.rlock_plan, settings.server(self._app)
        keys = plan.keys_of(tuple(self.args), self.kwargs) if plan is not None else ()
        return [scripts.name(key) for key in keys]


class LockedRequest(LockedRequestMixin, Request):
    """What `LockedTask` uses."""
