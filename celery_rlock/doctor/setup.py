"""What the checks examine: an app, its locked tasks, its lock server, its broker and its workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from celery import Celery
from redis.exceptions import NoPermissionError

from celery_rlock import settings
from celery_rlock.doctor.findings import CouldNotLook, Finding, NotChecked, located
from celery_rlock.doctor.primary import Primary, primaries_of
from celery_rlock.options.options import Options
from celery_rlock.options.plan import plan_of
from celery_rlock.server.failures import brief
from celery_rlock.server.lock_server import RedisLockServer

_TIMEOUT = 1.0

#: A first connection may take this many times as long as an answer.
_CONNECTING = 5


class Locked(NamedTuple):
    """A locked task and its options."""

    name: str
    task: Any
    options: Options


class Setup:
    """Everything the checks need, asked for at most once.

    At the start of a worker, `worker` is given: its command line may override settings.
    """

    def __init__(self, app: Celery, worker: Any = None, timeout: float = _TIMEOUT) -> None:
        self.app, self.timeout = app, timeout
        self._worker = worker
        self.load_error: Exception | None = None

    def load(self) -> None:
        """Import the modules of the app's tasks, as a worker does when it starts."""
        try:
            self.app.loader.import_default_modules()
            self.app.finalize()
        except Exception as error:  # noqa: BLE001 - the user's modules may raise anything
            self.load_error = error

    @cached_property
    def tasks(self) -> list[Locked]:
        """The locked tasks, by name."""
        plans = ((name, task, plan_of(task)) for name, task in self.app.tasks.items())
        return sorted(Locked(name, task, plan.options) for name, task, plan in plans if plan is not None)

    @property
    def examined(self) -> list[Locked]:
        """The locked tasks, for a check of tasks. Raises if there are none, or if not all could be loaded."""
        if self.load_error is not None:
            raise CouldNotLook("the app's tasks cannot be loaded", "see the check tasks")
        if not self.tasks:
            raise NotChecked("no task of this app is locked")
        return self.tasks

    @property
    def waiting_tasks(self) -> list[Locked]:
        """The examined tasks that may be scheduled again when their lock is busy."""
        return [locked for locked in self.examined if _may_retry(locked.options)]

    @property
    def replicas(self) -> int:
        """The highest `lock_replicas` of all tasks."""
        return max((locked.options.replicas for locked in self.tasks), default=0)

    def setting(self, name: str, of_worker: str) -> Any:
        """A setting of the app, unless the worker's command line overrides it."""
        chosen = getattr(self._worker, of_worker, None)
        return self.app.conf.get(name) if chosen is None else chosen

    def limits(self, locked: Locked) -> list[float]:
        """The soft and the hard time limit of a task, as far as they are set."""
        soft = locked.task.soft_time_limit or self.setting("task_soft_time_limit", "soft_time_limit")
        hard = locked.task.time_limit or self.setting("task_time_limit", "time_limit")
        return [limit for limit in (soft, hard) if limit]

    @cached_property
    def broker(self) -> str:
        """The kind of broker: "redis", "amqp" …"""
        return str(self.app.connection_for_read().transport.driver_type)

    @cached_property
    def broker_error(self) -> Exception | None:
        """Why the broker cannot be reached; None if it can."""
        return _error_within(_CONNECTING * self.timeout, self._connect_to_broker)

    def ask(self, command: str) -> list[tuple[str, dict[str, Any]]]:
        """The workers' answers to a remote-control command, each with the worker's name."""
        if self.broker_error is not None:
            raise CouldNotLook("the broker does not answer", "see the check broker")
        try:
            replies = self.app.control.broadcast(command, reply=True, timeout=self.timeout) or []
        except Exception as refusal:
            raise CouldNotLook(
                f"the workers cannot be asked through this broker: {brief(refusal)}",
                "use a broker with remote control, such as Redis or RabbitMQ; or look at each worker's log",
            ) from refusal
        return [answer for reply in replies for answer in reply.items()]

    @cached_property
    def lock_server(self) -> RedisLockServer:
        return settings.redis_server(self.app)

    @cached_property
    def server_error(self) -> Exception | None:
        """Why the lock server cannot be reached; None if it can."""
        return _error_within(_CONNECTING * self.timeout, self._ping_primaries)

    @property
    def primaries(self) -> list[Primary]:
        """Every primary of the lock server. Raises NotChecked where they cannot be asked."""
        if not settings.enabled(self.app):
            raise NotChecked("rlock_enabled is False")
        if self.server_error is not None:
            raise CouldNotLook("there is no connection", "see the check connection")
        if not self._primaries:
            raise CouldNotLook("the Cluster has no primary with slots", "assign its slots to its nodes")
        return self._primaries

    def _connect_to_broker(self) -> None:
        with self.app.connection_for_write(connect_timeout=self.timeout) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)

    def _ping_primaries(self) -> None:
        for primary in self._primaries:
            _ping(primary)

    @cached_property
    def _primaries(self) -> list[Primary]:
        found = primaries_of(self.lock_server)
        for primary in found:
            primary.in_memory = settings.in_memory(self.app)
        return found


#: A check: it yields what it finds.
Checker = Callable[[Setup], Iterable[Finding]]


def each_primary(check: Callable[[Primary, Setup], Iterable[Finding]]) -> Checker:
    """Run the check on every primary; if there are several, each finding names its server."""

    def check_each(setup: Setup) -> Iterator[Finding]:
        primaries = setup.primaries
        for primary in primaries:
            found = _looking(check(primary, setup))
            yield from located(found, primary.address) if len(primaries) > 1 else found

    return check_each


def _looking(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings; a server that could not be looked at does not hide those of the others."""
    try:
        yield from findings
    except CouldNotLook as reason:
        yield reason.finding


def _may_retry(options: Options) -> bool:
    return options.busy == "retry" or callable(options.busy)


def _ping(primary: Primary) -> None:
    try:
        primary.client.ping()
    except NoPermissionError as refusal:
        if "ping" not in str(refusal).lower():  # the connection itself was refused
            raise


def _error_within(seconds: float, do: Callable[[], object]) -> Exception | None:
    """What `do` raised, if anything; a TimeoutError if it takes longer than this.

    A client or a broker without a timeout would block for ever. `do` then stays behind on a daemon thread,
    which ends with the process.
    """
    outcome: list[Exception | None] = []

    def run() -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - any error is a reason that the caller reports
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="rlock-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else TimeoutError(f"no answer within {seconds:g} s")
