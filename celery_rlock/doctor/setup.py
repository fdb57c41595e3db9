"""What the checks look at: an app, its locked tasks, its lock server, its workers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoPermissionError

from celery_rlock import settings
from celery_rlock.checks.finding import NotChecked
from celery_rlock.checks.patience import within
from celery_rlock.checks.primary import Primary, primaries_of
from celery_rlock.core.scripts import Scripts
from celery_rlock.options import Options

if TYPE_CHECKING:
    from celery import Celery

_TIMEOUT = 1.0

#: What connects may take so many times as long as what only answers.
_PATIENCE = 5


class Locked(NamedTuple):
    """A locked task."""

    name: str
    task: Any
    options: Options


class Setup:
    """Asks everything at most once. In a worker, `worker` knows what its command line changed."""

    def __init__(self, app: Celery, worker: Any = None, timeout: float = _TIMEOUT) -> None:
        self.app, self.timeout = app, timeout
        self._worker = worker
        self.broken: Exception | None = None

    def load(self) -> None:
        """Import the modules of the app's tasks, as a worker does when it starts."""
        try:
            self.app.loader.import_default_modules()
            self.app.finalize()
        except Exception as error:  # noqa: BLE001 - the user's modules may raise anything
            self.broken = error

    @cached_property
    def tasks(self) -> list[Locked]:
        plans = ((name, task, getattr(task, "_lock_plan", None)) for name, task in self.app.tasks.items())
        return sorted(Locked(name, task, plan.options) for name, task, plan in plans if plan is not None)

    @property
    def waiting_tasks(self) -> list[Locked]:
        """Those that are scheduled again when their lock is busy, or may be."""
        return [one for one in self.tasks if one.options.busy == "retry" or callable(one.options.busy)]

    @property
    def replicas(self) -> int:
        """The most that a task wants to have its lock."""
        return max((one.options.replicas for one in self.tasks), default=0)

    def setting(self, name: str, of_worker: str) -> Any:
        """A setting of the app, unless the worker's command line says otherwise."""
        chosen = getattr(self._worker, of_worker, None)
        return self.app.conf.get(name) if chosen is None else chosen

    def limits(self, one: Locked) -> list[float]:
        """The task's time limits, soft and hard, as far as it has any."""
        soft = one.task.soft_time_limit or self.setting("task_soft_time_limit", "soft_time_limit")
        hard = one.task.time_limit or self.setting("task_time_limit", "time_limit")
        return [limit for limit in (soft, hard) if limit]

    @cached_property
    def broker(self) -> str:
        """What kind it is: "redis", "amqp" …"""
        return str(self.app.connection_for_read().transport.driver_type)

    @cached_property
    def broker_trouble(self) -> Exception | None:
        """Why the broker cannot be asked."""
        return within(_PATIENCE * self.timeout, self._connect_to_broker)

    def ask(self, command: str) -> list[tuple[str, dict[str, Any]]]:
        """What the workers answer: their names, one as often as it answers."""
        if self.broker_trouble is not None:
            raise NotChecked("the broker does not answer")
        replies = self.app.control.broadcast(command, reply=True, timeout=self.timeout) or []
        return [answer for reply in replies for answer in reply.items()]

    @cached_property
    def scripts(self) -> Scripts:
        return settings.server(self.app)

    @cached_property
    def trouble(self) -> Exception | None:
        """Why the lock's server cannot be asked."""
        return within(_PATIENCE * self.timeout, self._ping_primaries)

    @property
    def primaries(self) -> list[Primary]:
        if not settings.enabled(self.app):
            raise NotChecked("rlock_enabled is False")
        if self.trouble is not None:
            raise NotChecked("there is no connection")
        return self._primaries

    def _connect_to_broker(self) -> None:
        with self.app.connection_for_write(connect_timeout=self.timeout) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)

    def _ping_primaries(self) -> None:
        for primary in self._primaries:
            _ping(primary)

    @cached_property
    def _primaries(self) -> list[Primary]:
        return primaries_of(self.scripts)


def _ping(primary: Primary) -> None:
    try:
        primary.client.ping()
    except NoPermissionError as refusal:
        if "ping" not in str(refusal).lower():  # it was refused before that
            raise
