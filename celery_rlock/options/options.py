"""The options of a task: their defaults, and where a value comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from celery_rlock.errors import ConfigurationError
from celery_rlock.options.validation import DROPPING_ACTIONS, check_option, unknown_names


@dataclass(frozen=True)
class Options:
    """The options of one task: the task's own, else the app's `rlock_…` setting, else these defaults."""

    key: str | Callable[..., Any] | list[Any] | tuple[Any, ...] | None = None
    limit: int | Callable[..., int] | list[Any] | tuple[Any, ...] = 1
    ttl: float = 30
    max_hold: float | None = None
    hold_at_least: float = 0
    wait: float = 0
    busy: str | Callable[..., str] = "retry"
    backoff: float = 0.5
    backoff_max: float = 30
    jitter: bool = True
    max_attempts: int | None = None
    unavailable: str = "retry"
    lost: str | Callable[..., object] = "warn"
    from_: str = "run"
    until: str = "return"
    pending: int = 0
    queue_ttl: float = 3600
    duplicate: str = "existing"
    replicas: int = 0

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """These options with some changed. `changes` has the names that the user writes after `lock_`."""
        options = replace(self, **{f"{name}_" if name == "from" else name: changes[name] for name in changes})
        if options.until == "start" and options.from_ != "publish":
            raise ConfigurationError(
                'lock_until="start" frees what was taken at publish: set lock_from="publish"'
            )
        if options.from_ == "publish" and options.limit != 1:
            raise ConfigurationError(
                'lock_limit does not work with lock_from="publish", where one call takes the whole key'
            )
        options.check_pending()
        keys = len(options.key) if isinstance(options.key, list | tuple) else 1
        if isinstance(options.limit, list | tuple) and len(options.limit) != keys:
            raise ConfigurationError(
                f"lock_limit has {len(options.limit)} entries, but lock_key has {keys}: give one for all, or "
                "one for each"
            )
        if options.busy == "replace":
            options.check_replace()
        return options

    @property
    def pending_places(self) -> int:
        """How many calls may be pending in places of their own; 0: a call takes its keys at publish."""
        if self.from_ != "publish":
            return 0
        return max(self.pending, 1 if self.duplicate == "replace" else 0)

    def check_pending(self) -> None:
        """Refuse options with which a pending call could be lost or would not wait."""
        if self.pending and self.from_ != "publish":
            raise ConfigurationError(
                'lock_pending counts calls that are queued from their publication on: set lock_from="publish"'
            )
        if self.pending and self.until == "start":
            raise ConfigurationError(
                'lock_pending queues calls behind the running one, but with lock_until="start" they run '
                "beside it: leave one of them out"
            )
        if self.pending and self.busy in DROPPING_ACTIONS:
            raise ConfigurationError(
                f"with lock_pending a call that was queued waits for the running one, but "
                f'lock_busy={self.busy!r} would drop it: set lock_busy="retry"'
            )
        if self.pending_places and self.unavailable == "run":
            name = "lock_pending" if self.pending else 'lock_duplicate="replace"'
            raise ConfigurationError(
                f"with {name} a run must give up its place in the queue before it begins, but with "
                'lock_unavailable="run" it could not: set lock_unavailable="retry" or "fail"'
            )

    def check_replace(self, task: str = "") -> None:
        """Raise ConfigurationError if a call cannot replace the run that holds its lock."""
        of = f"task {task}: " if task else ""
        if self.limit != 1:
            raise ConfigurationError(
                f'{of}lock_busy="replace" does not work with lock_limit, because it does not say which of '
                "several runs is to end"
            )
        if self.from_ == "publish":
            raise ConfigurationError(
                f'{of}lock_busy="replace" does not work with lock_from="publish", where a call is not '
                "published while the task runs"
            )


#: The names that the user writes after `lock_` or `rlock_`.
NAMES = tuple(field.name.rstrip("_") for field in fields(Options))

#: The options that have an effect only with `lock_from="publish"`.
OF_UNIQUE_TASKS = ("pending", "queue_ttl", "duplicate")

#: `rlock_…` settings in app.conf that are not the default of an option.
SETTINGS = (
    "url",
    "password",
    "sentinel_password",
    "ssl_password",
    "prefix",
    "client",
    "enabled",
    "reaper",
    "call_options",
)


def resolve(task: type, conf: Mapping[str, Any]) -> Options:
    """The options of a task class. Raises ConfigurationError, which names what is wrong."""
    _refuse_unknown(task, conf)
    values = {}
    for name in NAMES:
        source, value = _lookup(task, conf, name)
        if source:
            check_option(name, value, source)
            values[name] = value
    return changed_by(task.__name__, Options(), values)


def changed_by(task: str, options: Options, changes: Mapping[str, Any]) -> Options:
    """The options with these changes. An error names the task."""
    try:
        return options.changed(changes)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {task}: {error}") from error


def for_one_call(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one call, which travel in its message: `lock_busy="skip"` becomes `{"busy": "skip"}`."""
    unknown = unknown_names(values, "lock_", [f"lock_{name}" for name in NAMES])
    if unknown:
        raise ConfigurationError(f"task {task}: {'; '.join(unknown)}")
    chosen = {name.removeprefix("lock_"): value for name, value in values.items()}
    for name, value in chosen.items():
        source = f"lock_{name} of a call of {task}"
        check_option(name, value, source)
        if callable(value) or (isinstance(value, list | tuple) and any(map(callable, value))):
            raise ConfigurationError(f"{source} cannot be a callable: it travels in the message")
    return chosen


def unknown_settings(conf: Mapping[str, Any]) -> list[str]:
    """An error text for each `rlock_…` setting that does not exist."""
    known = [f"rlock_{name}" for name in (*NAMES, *SETTINGS)]
    return unknown_names((setting_name(key, conf) for key in conf), "rlock_", known)


def _lookup(task: type, conf: Mapping[str, Any], name: str) -> tuple[str, Any]:
    missing = object()
    # Static, so that a function does not become a bound method.
    own = inspect.getattr_static(task, f"lock_{name}", missing)
    if own is not missing:
        return f"lock_{name} of task {task.__name__}", getattr(own, "__func__", own)
    value = conf.get(f"rlock_{name}", missing)
    return ("", None) if value is missing else (f"setting rlock_{name}", value)


def _refuse_unknown(task: type, conf: Mapping[str, Any]) -> None:
    known = [f"lock_{name}" for name in NAMES]
    chosen = (name for name in dir(task) if not _is_method(task, name))
    wrong = unknown_names(chosen, "lock_", known)
    unknown = unknown_settings(conf) + [f"task {task.__name__}: {text}" for text in wrong]
    if unknown:
        raise ConfigurationError("; ".join(unknown))


def _is_method(task: type, name: str) -> bool:
    """Whether a class of the user defines a method of this name, such as `def lock_account(self)`.

    A function that was given as an option has a name of its own.
    """
    found = inspect.getattr_static(task, name, None)
    if isinstance(found, property | cached_property | classmethod | staticmethod):
        return True
    return inspect.isroutine(found) and found.__name__ == name


def setting_name(key: str, conf: Mapping[str, Any]) -> str:
    """`rlock_ttl` for CELERY_RLOCK_TTL, as a settings module with the namespace CELERY spells it.

    The same words in a setting of another prefix, such as REDIS_RLOCK_TIMEOUT, are the user's own.
    """
    name = key.lower()
    for namespace in {str(getattr(conf, "prefix", None) or "").lower(), "celery_"}:
        if namespace and name.startswith(f"{namespace}rlock_"):
            return name.removeprefix(namespace)
    return name
