"""What a task may choose: the options, their defaults, and where a value comes from."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from celery_rlock.errors import ConfigurationError

Check = Callable[[Any], bool]

BUSY_ACTIONS = ("retry", "skip", "fail", "reject")
UNAVAILABLE_ACTIONS = ("retry", "fail", "run")
LOST_ACTIONS = ("warn", "abort")
SOURCES = ("run", "publish")
RELEASE_POINTS = ("start", "return", "postrun")
DUPLICATE_ACTIONS = ("existing", "raise")


@dataclass(frozen=True)
class Options:
    """One task's options, resolved: the task's own, else the app's `rlock_…` setting, else these."""

    key: str | Callable[..., Any] | list[Any] | tuple[Any, ...] | None = None
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
    queue_ttl: float = 3600
    duplicate: str = "existing"
    replicas: int = 0

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """With `changes`, named as the user names them, in place of some."""
        options = replace(self, **{f"{name}_" if name == "from" else name: changes[name] for name in changes})
        if options.until == "start" and options.from_ != "publish":
            raise ConfigurationError(
                'lock_until="start" frees what was taken at publish: set lock_from="publish"'
            )
        return options


#: As the user names them, after `lock_` or `rlock_`.
NAMES = tuple(field.name.rstrip("_") for field in fields(Options))

#: Settings in app.conf that are not defaults of an option.
SETTINGS = ("url", "prefix", "client", "enabled", "reaper")


def resolve(task: type, conf: Mapping[str, Any]) -> Options:
    """The options of a task class; a ConfigurationError names whatever cannot be used."""
    _refuse_unknown(task, conf)
    values = {}
    for name in NAMES:
        source, value = _lookup(task, conf, name)
        if source:
            _check(name, value, source)
            values[name] = value
    return Options().changed(values)


def for_one_call(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a single call chooses, `{"busy": "skip"}` of `lock_busy="skip"`, if it can travel in a message."""
    unknown = _unknown(values, "lock_", [f"lock_{name}" for name in NAMES])
    if unknown:
        raise ConfigurationError("; ".join(unknown))
    chosen = {name.removeprefix("lock_"): value for name, value in values.items()}
    for name, value in chosen.items():
        source = f"lock_{name} of a call of {task}"
        _check(name, value, source)
        if callable(value) or (isinstance(value, list | tuple) and any(map(callable, value))):
            raise ConfigurationError(f"{source} cannot be a callable: it travels in the message")
    return chosen


def unknown_settings(conf: Mapping[str, Any]) -> list[str]:
    """The `rlock_…` settings that do not exist, each with what may have been meant."""
    known = [f"rlock_{name}" for name in (*NAMES, *SETTINGS)]
    return _unknown((_setting_name(key) for key in conf), "rlock_", known)


def _lookup(task: type, conf: Mapping[str, Any], name: str) -> tuple[str, Any]:
    missing = object()
    own = inspect.getattr_static(task, f"lock_{name}", missing)  # static: a function must not become a method
    if own is not missing:
        return f"lock_{name} of task {task.__name__}", getattr(own, "__func__", own)
    value = conf.get(f"rlock_{name}", missing)
    return ("", None) if value is missing else (f"setting rlock_{name}", value)


def _refuse_unknown(task: type, conf: Mapping[str, Any]) -> None:
    unknown = unknown_settings(conf) + _unknown(dir(task), "lock_", [f"lock_{name}" for name in NAMES])
    if unknown:
        raise ConfigurationError("; ".join(unknown))


def _unknown(names: Iterable[str], prefix: str, known: list[str]) -> list[str]:
    return [
        f"unknown option {name!r}{_did_you_mean(name, known)}"
        for name in names
        if name.startswith(prefix) and name not in known
    ]


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f", did you mean {close[0]!r}?" if close else f": there are {', '.join(known)}"


def _setting_name(key: str) -> str:
    """CELERY_RLOCK_TTL, as a settings module with a namespace has it, is rlock_ttl."""
    before, found, after = key.lower().partition("rlock_")
    return found + after if not before or before.endswith("_") else key


def _check(name: str, value: Any, source: str) -> None:
    check, wanted = _CHECKS[name]
    if not check(value):
        raise ConfigurationError(f"{source} must be {wanted}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _positive_or_none(value: Any) -> bool:
    return value is None or _positive(value)


def _not_negative(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count_or_none(value: Any) -> bool:
    return value is None or (_is_count(value) and value > 0)


def _one_of(*choices: str) -> tuple[Check, str]:
    return lambda value: value in choices, "one of " + ", ".join(map(repr, choices))


def _one_of_or_callable(*choices: str) -> tuple[Check, str]:
    check, wanted = _one_of(*choices)
    return lambda value: callable(value) or check(value), f"{wanted}, or a callable"


def _is_key(value: Any) -> bool:
    return callable(value) or (isinstance(value, str) and value != "")


def _is_key_or_keys(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_key, value))
    return value is None or _is_key(value)


_CHECKS: dict[str, tuple[Check, str]] = {
    "key": (_is_key_or_keys, "a template over argument names, a callable, or a list of these"),
    "ttl": (_positive, "a number of seconds above 0"),
    "max_hold": (_positive_or_none, "a number of seconds above 0, or None"),
    "hold_at_least": (_not_negative, "a number of seconds, 0 or more"),
    "wait": (_not_negative, "a number of seconds, 0 or more"),
    "busy": _one_of_or_callable(*BUSY_ACTIONS),
    "backoff": (_positive, "a number of seconds above 0"),
    "backoff_max": (_positive, "a number of seconds above 0"),
    "jitter": (lambda value: isinstance(value, bool), "True or False"),
    "max_attempts": (_count_or_none, "a whole number above 0, or None"),
    "unavailable": _one_of(*UNAVAILABLE_ACTIONS),
    "lost": _one_of_or_callable(*LOST_ACTIONS),
    "from": _one_of(*SOURCES),
    "until": _one_of(*RELEASE_POINTS),
    "queue_ttl": (_positive, "a number of seconds above 0"),
    "duplicate": _one_of(*DUPLICATE_ACTIONS),
    "replicas": (_is_count, "a whole number, 0 or more"),
}
