"""Locks on Celery's event bus, for Flower, `celery events` and our exporter.

A worker sends them where it sends task events (`-E`), unless the task switches them off (`send_events`).
A publisher tells of duplicates where it sends `task-sent` (`task_send_sent_event`).
Their types do not begin with `task-`, because monitors take such events for states of a task.
"""

from __future__ import annotations

import atexit
import math
import threading
from collections import deque
from time import time
from typing import Any, NamedTuple

from celery import Celery
from celery.events.event import group_from
from celery.signals import worker_process_shutdown, worker_shutdown
from celery.utils.nodenames import anon_nodename

from celery_rlock import signals
from celery_rlock.core.background import Loop
from celery_rlock.errors import DuplicateTask, LockBusy, LockLost, LockUnavailable, TaskReplaced
from celery_rlock.log import logger
from celery_rlock.options.headers import delivery_of
from celery_rlock.running.task_lock import TaskLock
from celery_rlock.server.clock import now
from celery_rlock.server.forks import in_forked_child

ACQUIRED, BUSY, SKIPPED = "lock-acquired", "lock-busy", "lock-skipped"
RELEASED, LOST, UNAVAILABLE = "lock-released", "lock-lost", "lock-unavailable"
DUPLICATE, SUPERSEDED, REPLACED = "lock-duplicate", "lock-superseded", "lock-replaced"

#: The fields of each event, beside Celery's own (type, hostname, pid, timestamp, utcoffset, clock …).
FIELDS = {
    ACQUIRED: ("uuid", "name", "key", "owner", "token", "slot", "waited"),
    BUSY: ("uuid", "name", "key", "owner", "holder", "action", "waited"),
    SKIPPED: ("uuid", "name", "key", "owner", "holder", "action", "waited"),
    RELEASED: ("uuid", "name", "key", "owner", "token", "slot", "held"),
    LOST: ("uuid", "name", "key", "owner", "token", "slot", "held", "reason"),
    UNAVAILABLE: ("uuid", "name", "key", "owner", "action", "reason"),
    DUPLICATE: ("uuid", "name", "key", "holder", "action"),
    SUPERSEDED: ("uuid", "name", "key", "by"),
    REPLACED: ("uuid", "name", "key", "owner", "by", "held"),
}

_UID = "celery_rlock.events"
_MOST_WAITING = 1000
_TIME_TO_GATHER = 0.1
_PAUSE_AFTER_ERROR = 1.0
_LOOK_EVERY = 0.02
_TIME_TO_LEAVE = 1.0


def seconds_in(event: dict[str, Any], name: str) -> float:
    """A number of seconds in an event. An event without it, or with anything else there, is an error."""
    seconds = float(event[name])
    if not math.isfinite(seconds):  # it would stay in the sum for ever
        raise ValueError(name)
    return max(0.0, seconds)


def sends_task_events(eventer: Any) -> bool:
    """Whether a worker with this dispatcher sends task events: by `-E`, a setting, or remote control."""
    return bool(eventer and eventer.enabled) and (not eventer.groups or "task" in eventer.groups)


@signals.lock_acquired.connect(weak=False, dispatch_uid=_UID)
def _on_acquired(sender: Any, lock: TaskLock, request: Any, waited: float, **_: Any) -> None:
    if _are_wanted(request):
        _send(ACQUIRED, sender, request, **_of(lock), waited=waited)


@signals.lock_busy.connect(weak=False, dispatch_uid=_UID)
def _on_busy(sender: Any, error: LockBusy, request: Any, **fields: Any) -> None:
    if _are_wanted(request):
        type_ = SKIPPED if fields["action"] == "skip" else BUSY
        more = {name: fields[name] for name in ("owner", "action", "waited")}
        _send(type_, sender, request, key=error.key, holder=error.holder, **more)


@signals.lock_released.connect(weak=False, dispatch_uid=_UID)
def _on_released(sender: Any, lock: TaskLock, request: Any, held: float, **_: Any) -> None:
    if _are_wanted(request):
        _send(RELEASED, sender, request, **_of(lock), held=held)


@signals.lock_lost.connect(weak=False, dispatch_uid=_UID)
def _on_lost(sender: Any, lock: TaskLock, error: LockLost, request: Any, held: float, **_: Any) -> None:
    if _are_wanted(request):
        _send(LOST, sender, request, **{**_of(lock), "key": error.key}, held=held, reason=error.reason)


@signals.lock_unavailable.connect(weak=False, dispatch_uid=_UID)
def _on_unavailable(
    sender: Any, error: LockUnavailable, action: str, request: Any, owner: str, **_: Any
) -> None:
    if _are_wanted(request):
        _send(UNAVAILABLE, sender, request, key=error.key, owner=owner, action=action, reason=error.reason)


@signals.lock_duplicate.connect(weak=False, dispatch_uid=_UID)
def _on_duplicate(sender: Any, error: DuplicateTask, action: str, **_: Any) -> None:
    fields = {"uuid": error.task_id, "key": error.key, "holder": error.holder, "action": action}
    _send_from_publisher(DUPLICATE, sender, fields)


@signals.lock_superseded.connect(weak=False, dispatch_uid=_UID)
def _on_superseded(sender: Any, task_id: str, key: str, by: str, **_: Any) -> None:
    _send_from_publisher(SUPERSEDED, sender, {"uuid": task_id, "key": key, "by": by})


def _send_from_publisher(type_: str, task: Any, fields: dict[str, Any]) -> None:
    if task.app.conf.task_send_sent_event and task.send_events:
        _sender.send(task.app, anon_nodename(), type_, {"name": task.name, **fields})


@signals.lock_replaced.connect(weak=False, dispatch_uid=_UID)
def _on_replaced(sender: Any, error: TaskReplaced, request: Any, held: float, **_: Any) -> None:
    if _are_wanted(request):
        _send(REPLACED, sender, request, key=error.key, owner=error.owner, by=error.by, held=held)


def _are_wanted(request: Any) -> bool:
    """Whether the worker sends events about this call."""
    delivery = delivery_of(vars(request)) if request is not None else None
    return delivery is not None and delivery.sends_events


def _of(lock: TaskLock) -> dict[str, object]:
    return {"key": lock.key, "owner": lock.owner, "token": lock.token, "slot": lock.slot}


def _send(type_: str, task: Any, request: Any, **fields: object) -> None:
    _sender.send(task.app, request.hostname, type_, {"uuid": request.id, "name": task.name, **fields})


class Event(NamedTuple):
    """An event that is to be sent."""

    app: Celery
    hostname: str
    type: str
    fields: dict[str, Any]


class EventSender:
    """Sends events on a thread and a connection of its own, so that no task waits for the broker.

    While the broker is away it keeps the newest thousand events. A killed process loses what it had not sent.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child has neither its parent's thread nor its connection."""
        self._waiting: deque[Event] = deque(maxlen=_MOST_WAITING)
        self._due = math.inf  #: when to send what waits
        self._is_sending = self._in_haste = False
        self._loop = Loop("rlock-events", self._tick)
        self._dispatchers: dict[tuple[Celery, str], Any] = {}

    def send(self, app: Celery, hostname: str, type_: str, fields: dict[str, Any]) -> None:
        """Queue the event; a thread sends it soon.

        A task calls this, so a signal handler may raise at any point here. No mutex is involved.
        """
        self._waiting.append(Event(app, hostname, type_, {"timestamp": time(), **fields}))
        if self._due == math.inf:
            self._due = now() + _TIME_TO_GATHER
        self._loop.call_by(self._due)

    def flush(self, **_: Any) -> None:
        """Before a process ends, give its last events up to a second."""
        end = now() + _TIME_TO_LEAVE
        self._in_haste = True
        while (self._waiting or self._is_sending) and now() < end:
            self._loop.poke()
            threading.Event().wait(_LOOK_EVERY)
        self._in_haste = False

    def _tick(self) -> float:
        """Send what waits, once its time has come. Returns the seconds until the next time."""
        if self._waiting and (self._in_haste or now() >= self._due):
            self._is_sending, self._due = True, math.inf
            try:
                self._send_all()
            finally:
                self._is_sending = False
        if self._waiting and self._due == math.inf:  # an interrupted `send` set no time
            self._due = now() + _TIME_TO_GATHER
        return self._due - now()

    def _send_all(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not self._publish(batch):
            room = _MOST_WAITING - len(self._waiting)
            self._waiting.extendleft(batch[: -room - 1 : -1])
            self._due = now() + _PAUSE_AFTER_ERROR

    def _publish(self, batch: list[Event]) -> bool:
        """Send the batch. Returns False if the broker is away, so that the batch must be sent later.

        What two working connections refused is dropped, one event at a time.
        """
        for _ in range(2):
            try:
                dispatchers = {self._dispatcher(event) for event in batch}
            except Exception as error:  # noqa: BLE001 - no task may fail because of an event
                logger.debug("no broker for %d events, trying again later: %r", len(batch), error)
                return False
            try:
                for event in batch:
                    self._dispatcher(event).send(event.type, **event.fields)
                for dispatcher in dispatchers:
                    dispatcher.flush(errors=False)
            except Exception as error:  # noqa: BLE001 - as above
                logger.debug("could not send %d events: %r", len(batch), error)
                self._disconnect()
            else:
                return True
        if len(batch) > 1:
            for event in batch:
                self._publish([event])
        return True

    def _dispatcher(self, event: Event) -> Any:
        """A dispatcher with its own connection, so that it never exhausts the tasks' connection pool.

        It buffers events and sends them in one message when it is flushed, as Celery's own dispatcher does.
        """
        place = event.app, event.hostname
        if place not in self._dispatchers:
            connection = event.app.connection_for_write()
            connection.ensure_connection(max_retries=1)
            group = [group_from(event.type)]
            self._dispatchers[place] = event.app.events.Dispatcher(
                connection,
                hostname=event.hostname,
                buffer_while_offline=False,
                buffer_group=group,
                buffer_limit=2 * _MOST_WAITING,
            )
        return self._dispatchers[place]

    def _disconnect(self) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.close()
            dispatcher.connection.collect(_TIME_TO_LEAVE)
        self._dispatchers.clear()


_sender = EventSender()
in_forked_child(_sender.reset)
worker_process_shutdown.connect(_sender.flush, weak=False, dispatch_uid=_UID)
worker_shutdown.connect(_sender.flush, weak=False, dispatch_uid=_UID)
atexit.register(_sender.flush)  # a publisher that ends has none of these signals
