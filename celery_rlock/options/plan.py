"""A task's plan: its options, and how the keys of a call are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_rlock.errors import ConfigurationError
from celery_rlock.options.arguments import Parameters
from celery_rlock.options.headers import OPTIONS, LockHeaders, check_call_options, read_headers
from celery_rlock.options.keys import KeysOf, LimitsOf, keys_of_call, limits_of_call
from celery_rlock.options.options import NAMES, OF_UNIQUE_TASKS, Options, changed_by, resolve
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.redis_keys import RedisKeys


class Plan:
    """The plan of a task, or of one call that chose options of its own."""

    def __init__(
        self, name: str, parameters: Parameters, options: Options, call_options: frozenset[str]
    ) -> None:
        self.name, self._parameters, self._call_options = name, parameters, call_options
        self._renamed: dict[str, Plan] = {}
        self.options = options
        self.keys_of: KeysOf = keys_of_call(name, parameters, options.key)
        self.limits_of: LimitsOf = limits_of_call(name, parameters, options.key, options.limit)

    @property
    def has_plain_key(self) -> bool:
        """Whether a call with plain arguments has one key, and making it runs no code of the user."""
        return (self.options.key is None or isinstance(self.options.key, str)) and self._parameters.are_plain

    @classmethod
    def of(cls, task: Any, app: Celery) -> Plan | None:
        """The plan of a task class.

        None for Celery's own tasks, which `app.Task = LockedTask` affects too.
        """
        if str(task.name).startswith("celery."):
            return None
        # A class-based task may have no name before an instance of it is registered: see `plan_of`.
        name = task.name or f"{task.__module__}.{task.__qualname__}"
        return cls(name, Parameters(task), resolve(task, app.conf), allowed_call_options(app.conf))

    def for_call(self, options: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
        """The plan of a call with these options of `apply_async`, and the options for Celery.

        Our options move into the message's headers.
        """
        chosen = {name: options[name] for name in options if name.startswith("lock_")}
        headers = options.get("headers") or {}
        if not chosen and not headers:
            return self, options
        given = _checked(read_headers(headers, self.name))
        values = {
            **given.options,
            **check_call_options(self.name, {key.removeprefix("lock_"): chosen[key] for key in chosen}),
        }
        if not values:
            return self, options
        others = {name: options[name] for name in options if name not in chosen}
        plan = self._changed(values)
        for name in OF_UNIQUE_TASKS:
            if f"lock_{name}" in chosen and plan.options.from_ != "publish":
                raise ConfigurationError(
                    f"lock_{name} of a call of {self.name} has no effect: "
                    'set lock_from="publish" too, or leave it out'
                )
        return plan, {**others, "headers": {**headers, OPTIONS: values}}

    def for_message(self, headers: LockHeaders) -> Plan:
        """The plan of the call whose message has these headers. ConfigurationError if they are wrong."""
        options = _checked(headers).options
        return self._changed(options) if options else self

    def redis_keys(
        self, lock_server: LockServer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[RedisKeys]:
        """The Redis keys of the locks that a call with these arguments takes."""
        try:
            return [lock_server.redis_keys(key) for key in self.keys_of(args, kwargs)]
        except MemoryError as error:  # Celery ends the whole worker after a MemoryError in a task
            raise ConfigurationError(
                f"there was not enough memory for the lock's key of {self.name}: set lock_key to "
                "something short"
            ) from error

    @property
    def has_computed_limit(self) -> bool:
        """Whether the arguments of a call decide its limits."""
        limit = self.options.limit
        return any(map(callable, limit if isinstance(limit, list | tuple) else [limit]))

    def _changed(self, values: Mapping[str, Any]) -> Plan:
        refused = sorted(f"lock_{name}" for name in values if name not in self._call_options)
        if refused:
            raise ConfigurationError(
                f"a call of {self.name} cannot choose {', '.join(refused)}: the setting rlock_call_options "
                "does not allow it"
            )
        options = changed_by(self.name, self.options, values)
        return Plan(self.name, self._parameters, options, self._call_options)

    def named(self, name: str) -> Plan:
        """The same plan for a task of this name."""
        if name == self.name:
            return self
        if name not in self._renamed:
            self._renamed[name] = Plan(name, self._parameters, self.options, self._call_options)
        return self._renamed[name]


def allowed_call_options(conf: Mapping[str, Any]) -> frozenset[str]:
    """The options that a call may choose, by their names after `lock_`: all, or those of the setting."""
    allowed = conf.get("rlock_call_options")
    if allowed is None:
        return frozenset(NAMES)
    known = [f"lock_{name}" for name in NAMES]
    if not isinstance(allowed, list | tuple | set | frozenset) or not all(name in known for name in allowed):
        raise ConfigurationError(
            f"setting rlock_call_options must be a list of options such as 'lock_busy', not {allowed!r}"
        )
    return frozenset(name.removeprefix("lock_") for name in allowed)


def _checked(headers: LockHeaders) -> LockHeaders:
    if headers.error is not None:
        raise headers.error
    return headers


def plan_of(task: Any) -> Plan | None:
    """The plan of a registered task; None if it is not locked."""
    plan: Plan | None = getattr(task, "_lock_plan", None)
    return plan.named(task.name) if plan is not None else None
