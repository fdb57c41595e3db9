"""What a task does about its lock: its options, and how its keys are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery_rlock.key import KeysOf, keys_of_call
from celery_rlock.options import Options, for_one_call, resolve

if TYPE_CHECKING:
    from celery import Celery

#: Header of the message: the options of this call only.
OPTIONS = "rlock_options"


class Plan:
    """One task's plan; or one call's, where the call chose options of its own."""

    def __init__(self, task: Any, options: Options) -> None:
        self._task = task
        self.options = options
        self.keys_of: KeysOf = keys_of_call(task, options.key)

    @classmethod
    def of(cls, task: Any, app: Celery) -> Plan | None:
        """The plan of a task class; None for Celery's own, which `app.Task = LockedTask` makes ours too."""
        if str(task.name).startswith("celery."):
            return None
        return cls(task, resolve(task, app.conf))

    def for_call(self, options: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
        """The plan of a call with these options of `apply_async`; and the latter with ours in the headers."""
        chosen = {name: options[name] for name in options if name.startswith("lock_")}
        headers = options.get("headers") or {}
        values = {**(headers.get(OPTIONS) or {}), **for_one_call(self._task.name, chosen)}
        if not values:
            return self, options
        others = {name: options[name] for name in options if name not in chosen}
        return self._changed(values), {**others, "headers": {**headers, OPTIONS: values}}

    def for_headers(self, header: Callable[[str], Any]) -> Plan:
        """The plan of the call whose message has these headers."""
        values = header(OPTIONS)
        if not values:
            return self
        return self._changed(
            for_one_call(self._task.name, {f"lock_{name}": value for name, value in values.items()})
        )

    def _changed(self, values: Mapping[str, Any]) -> Plan:
        return Plan(self._task, self.options.changed(values))
