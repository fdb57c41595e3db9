"""The request of a locked task, in the worker's parent process."""

from __future__ import annotations

import os
import signal as signals
import time
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.signals import task_revoked
from celery.worker import state
from celery.worker.request import Request
from kombu.utils.functional import LRUCache

from celery_rlock import settings
from celery_rlock.core.background import background
from celery_rlock.errors import ConfigurationError, RLockError, TaskReplaced
from celery_rlock.log import about, logger
from celery_rlock.options.headers import (
    DELIVERY,
    Delivery,
    LockHeaders,
    name_delivery,
    read_headers,
    write_headers,
)
from celery_rlock.options.plan import Plan, plan_of
from celery_rlock.running.busy import Skipped
from celery_rlock.running.releasing import free_queued
from celery_rlock.running.replaced import Replaced
from celery_rlock.running.reschedule import Waiting, seconds_until
from celery_rlock.server.clock import now
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Release, ReleaseReply
from celery_rlock.telemetry.events import sends_task_events
from celery_rlock.worker.bootsteps import note_acknowledged, waker
from celery_rlock.worker.celery_internals import ProcessEnd, RequestHooks, is_child
from celery_rlock.worker.dead_children import watch_children
from celery_rlock.worker.parked import LONGEST_SILENCE, ParkedTask, free_when_revoked

_LOOK_FOR_ACKNOWLEDGEMENT = 1.0
_TIME_TO_ACKNOWLEDGE = 5.0

#: Seconds between SIGTERM and SIGKILL for a run that does not end.
_TIME_TO_STOP = 2.0

#: The last delivery that has begun here of each message that waited, as its number of attempts before.
_begun: Any = LRUCache(limit=10_000)


class LockedRequestMixin(RequestHooks):
    """Mix it into a `Request` class of your own: `class MyRequest(LockedRequestMixin, Request)`.

    It names the delivery, so that the parent and the child process know the same owner. It releases the lock
    of a child that died, and reports tasks that ended without a run.
    """

    _rlock_child: int | None = None
    _rlock_comes_again = False
    _rlock_goes_on = False
    _rlock_is_published_again = False
    _rlock_parked: ParkedTask | None = None

    #: The lock that a new message waits for without a visit to the pool.
    rlock_line: RedisKeys | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sends_events = bool(self.task.send_events and sends_task_events(self.eventer))
        name, content_type = name_delivery(self.message_headers), self.message.content_type
        self._rlock_delivery = Delivery(name, time.time(), sends_events, content_type)
        self.rlock_headers = read_headers(self.message_headers, str(self.task.name))
        self.message_headers[DELIVERY] = self._rlock_delivery
        if self.delivery_info.get("redelivered"):
            self.announce_redelivery()
        elif not self.message_headers.get("retries") and self._rlock_replaces_unseen:
            background.add(f"tell the run to end that {self.id} replaces", self._rlock_replace)
        this_waker = waker()
        if this_waker is not None:
            self.rlock_line = this_waker.line_for(self)
            if self.rlock_line is not None:
                self._rlock_wait_here()

    def _rlock_wait_here(self) -> None:
        """Wait as a task waits that has found its lock busy. It is looked at again if Redis says nothing."""
        seconds = LONGEST_SILENCE
        if self.expires is not None:
            seconds = min(seconds, max(0.0, seconds_until(self.task.app, self.expires)))
        self.schedule(seconds)

    def on_scheduled(self) -> None:
        this_waker = waker()
        if this_waker is None:
            return
        waits = self.rlock_headers.is_waiter or self.rlock_line is not None
        if waits and self.rlock_plan is not None:
            self._rlock_parked = this_waker.add(self)
        elif self._rlock_is_unique:
            free_when_revoked(self, this_waker.timer)

    def on_revoked(self) -> None:
        if self._rlock_parked is not None:
            self._rlock_parked.leave()
        self.free_queued()

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        self._rlock_child = pid if is_child(pid) else None
        note_begun(self)
        super().on_accepted(pid, time_accepted)
        if self._rlock_child is not None:
            watch_children()

    def on_failure(
        self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        died = not return_ok  # then the pool reports the failure, not the child
        self._rlock_is_published_again = isinstance(exc_info.exception, Waiting)
        self._rlock_goes_on = died or self._rlock_is_published_again
        result = super().on_failure(exc_info, send_failed_event, return_ok)
        if isinstance(exc_info.exception, Skipped | Replaced):
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
            task_revoked.send(self.task, request=self.context, terminated=False, signum=None, expired=False)
        elif self._rlock_is_published_again and not is_overtaken(self):
            self.send_event("task-retried", exception=str(exc_info.exception), traceback="")
        elif died:
            self._rlock_release_when_dead(is_reaped=True)
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

    def rlock_end(self, pool: Any, error: TaskReplaced) -> None:
        """Terminate the run, which goes on although a newer call replaces it.

        NotImplementedError if the pool cannot do that. A process that ignores SIGTERM is killed.
        """
        pid = self._rlock_child
        self.revoked_because = error.summary
        self.terminate(pool)
        if pid is not None:
            background.add(f"kill process {pid}", partial(_kill, pid), not_before=now() + _TIME_TO_STOP)

    def acknowledge(self) -> None:
        super().acknowledge()
        self._rlock_on_settled()

    def reject(self, requeue: bool = False) -> None:
        super().reject(requeue)
        if not requeue:
            self._rlock_on_settled()

    def on_broker_lost(self) -> None:
        """The broker will redeliver the message, unless it has received the acknowledgement."""
        self._rlock_comes_again = True
        if not self.acknowledged or self._rlock_is_published_again:
            self.announce_redelivery()
        else:
            self._rlock_tell_redelivery()

    def _rlock_on_settled(self) -> None:
        """The message is acknowledged or rejected: the broker forgets it, if this reaches the broker."""
        if not self.task.acks_late:
            return
        if self._rlock_comes_again:
            self._rlock_tell_redelivery()
            return
        note_acknowledged(self)
        if self._rlock_is_published_again:
            self._rlock_mark_acked_soon(give_up=now() + _TIME_TO_ACKNOWLEDGE)

    def _rlock_tell_redelivery(self) -> None:
        """An expected redelivery learns that the task has ended, which the run itself could not tell it."""
        if not self._rlock_goes_on:
            background.add(
                f"tell the redelivery of {self.id} that its task has ended", self._rlock_mark_ended
            )

    def announce_redelivery(self) -> None:
        """The message was delivered twice, or will be: the run that holds the lock must tell how it ended."""
        background.add(f"announce a redelivery of {self.id}", self._rlock_announce_redelivery)

    def free_queued(self) -> None:
        """Free what the task took when it was published, because it will not start any more."""
        if self._rlock_is_unique:
            background.add(f"free the keys of {self.id}", self._rlock_free_queued, first=True)

    @property
    def rlock_owner(self) -> Owner:
        return Owner(self.hostname, self._rlock_delivery.name, self.id)

    @cached_property
    def rlock_plan(self) -> Plan | None:
        """The plan of this call.

        None for Celery's own tasks, and for a message whose headers are wrong: its task fails in the pool.
        """
        plan = plan_of(self.task)
        try:
            return plan and plan.for_message(self.rlock_headers)
        except ConfigurationError:
            return None

    def rlock_redis_keys(self) -> list[RedisKeys]:
        """The keys of this call. Computing them may run the user's code, which fails as ConfigurationError.

        Whatever that code raises must not end the thread that called this, nor the worker.
        """
        plan = self.rlock_plan
        if plan is None:
            return []
        try:
            return plan.redis_keys(self._rlock_server, tuple(self.args), self.kwargs)
        except RLockError:
            raise
        except BaseException as error:
            raise ConfigurationError(f"no key for task {self.name}[{self.id}]: {error!r}") from error

    def rlock_limit(self, redis_keys: RedisKeys) -> int:
        """How many executions may hold this key of the call. It may run the user's code, as above."""
        plan = self.rlock_plan
        try:
            return plan.limits_of(tuple(self.args), self.kwargs).get(redis_keys.key, 1) if plan else 1
        except RLockError:
            raise
        except BaseException as error:
            raise ConfigurationError(f"no limit for task {self.name}[{self.id}]: {error!r}") from error

    def rlock_rewrite(self, headers: LockHeaders) -> None:
        """Change our headers, also those that the pool process will see."""
        self.rlock_headers = headers
        write_headers(self.message_headers, headers)
        self.message_headers[DELIVERY] = self._rlock_delivery

    @property
    def _rlock_server(self) -> LockServer:
        return settings.server(self.task.app)

    @property
    def _rlock_is_unique(self) -> bool:
        plan = self.rlock_plan
        return plan is not None and plan.options.from_ == "publish"

    @property
    def _rlock_replaces_unseen(self) -> bool:
        """Whether the task replaces a run, and no process is free in which it could find that run."""
        plan, this_waker = self.rlock_plan, waker()
        return (
            plan is not None
            and plan.options.busy == "replace"
            and this_waker is not None
            and not (
                this_waker.can_start() or self.eta or self.rlock_headers.is_waiter or self.task.rate_limit
            )
        )

    def _rlock_replace(self) -> None:
        plan, lock_server, task = self.rlock_plan, self._rlock_server, str(self.name)
        if plan is None or self.id in state.revoked:
            return
        for redis_keys in self.rlock_redis_keys():
            replace = partial(lock_server.replace, redis_keys, keep=plan.options.backoff_max)
            holder = replace(None, task, self.id, 0, comes_again=False).holder
            if holder is not None and self.task.acks_late:
                replace(holder, task, self.id, 0, comes_again=True)

    def _rlock_release_when_dead(self, *, is_reaped: bool = False) -> None:
        """A child that had time to release its lock has done so. Releasing again does no harm.

        The pool may report the death of a child before the child's own message that it has begun. Then its
        process id is not known, but the pool has already reaped it.
        """
        pid = self._rlock_child
        if pid is not None or is_reaped:
            self._rlock_child = None
            server, is_dead = self._rlock_server, None if pid is None else ProcessEnd(pid)
            # The child may have died with an acquire on its way, which arrives after the first release.
            for later in (0.0, now() + server.patience + 0.1):
                background.add(
                    f"release the lock of {self.id}",
                    self._rlock_release,
                    is_dead,
                    not_before=later,
                    server=server.identity,
                    first=True,
                )

    def _rlock_release(self) -> None:
        lock_server = self._rlock_server
        for redis_keys in self.rlock_redis_keys():
            if lock_server.release(redis_keys, self.rlock_owner, Release()) == ReleaseReply.RELEASED:
                logger.warning(
                    "released lock %r of %s, whose process died",
                    redis_keys.key,
                    self.rlock_owner,
                    extra=about(redis_keys.key, self.rlock_owner, self.id),
                )
        self.free_queued()

    def _rlock_free_queued(self) -> None:
        plan = self.rlock_plan
        places = plan is not None and bool(plan.options.pending_places)
        free_queued(self._rlock_server, self.rlock_redis_keys(), self.id, places=places)

    def _rlock_announce_redelivery(self) -> None:
        for redis_keys in self.rlock_redis_keys()[:1]:
            if self.task.acks_late:  # a delivery that waits holds no lock to be marked
                self._rlock_server.mark_unacked(redis_keys, self.rlock_owner, redelivered=True)
            self._rlock_server.redelivery(redis_keys, self.rlock_owner)

    def _rlock_mark_ended(self) -> None:
        for redis_keys in self.rlock_redis_keys()[:1]:
            self._rlock_server.mark_ended(redis_keys, self.rlock_owner)

    def _rlock_mark_acked_soon(self, give_up: float) -> None:
        """A message that was published again learns that there is only one of it.

        Not at once: the worker's event loop sends the acknowledgement a moment later. If the connection is
        lost about then, the broker may not have received it.
        """
        background.add(
            f"note that {self.id} is acknowledged",
            partial(self._rlock_mark_acked, give_up),
            not_before=now() + _LOOK_FOR_ACKNOWLEDGEMENT,
        )

    def _rlock_mark_acked(self, give_up: float) -> None:
        if self._rlock_comes_again:
            return
        if self.message.acknowledged:
            for redis_keys in self.rlock_redis_keys()[:1]:
                self._rlock_server.mark_acked(redis_keys, self.rlock_owner)
        elif now() < give_up:
            self._rlock_mark_acked_soon(give_up)


class LockedRequest(LockedRequestMixin, Request):
    """The request class of `LockedTask`."""


def _kill(pid: int) -> None:
    if not ProcessEnd(pid)():
        logger.warning("process %d ignores SIGTERM and is killed", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signals.SIGKILL)


def note_begun(request: Any) -> None:
    """The pool has accepted this delivery."""
    attempts = request.rlock_headers.attempts
    if attempts:
        _begun[request.rlock_owner.message] = attempts


def is_overtaken(request: Any) -> bool:
    """Whether a later delivery of the task has begun here.

    A waiter may be woken so soon that it begins again before its busy attempt is over. What the busy attempt
    would report is then out of date.
    """
    return bool(_begun.get(request.rlock_owner.message, 0) > request.rlock_headers.attempts)
