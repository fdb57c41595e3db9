"""Checks the values of options, and names what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from celery_rlock.core.lock import LONGEST_TTL, MOST_PLACES
from celery_rlock.errors import ConfigurationError, did_you_mean

Check = Callable[[Any], bool]

BUSY_ACTIONS = ("retry", "skip", "fail", "reject", "replace")
#: Those that end a task without a run.
DROPPING_ACTIONS = ("skip", "fail", "reject")
UNAVAILABLE_ACTIONS = ("retry", "fail", "run")
LOST_ACTIONS = ("warn", "abort")
SOURCES = ("run", "publish")
RELEASE_POINTS = ("start", "return", "postrun")
DUPLICATE_ACTIONS = ("existing", "raise", "replace")


#: Each look at the pending calls of a key looks at all of them.
MOST_PENDING = 1000


#: What other locks call an option, and its name here.
_OTHER_NAMES = {
    "timeout": "ttl",
    "expire": "ttl",
    "expires": "ttl",
    "expiry": "ttl",
    "lease": "ttl",
    "blocking_timeout": "wait",
    "blocking": "busy",
    "name": "key",
    "unique": "from",
    "unique_on": "key",
    "raise_on_duplicate": "duplicate",
}


def unknown_names(names: Iterable[str], prefix: str, known: list[str]) -> list[str]:
    """An error text for each name with the prefix that is not known."""
    return [
        f"unknown option {name!r}{_suggestion(name, prefix, known)}"
        for name in names
        if name.startswith(prefix) and name not in known
    ]


def _suggestion(name: str, prefix: str, known: list[str]) -> str:
    meant = _OTHER_NAMES.get(name.removeprefix(prefix))
    return did_you_mean(f"{prefix}{meant}" if meant else name, known)


def check_option(name: str, value: Any, source: str) -> None:
    """Raise ConfigurationError if the option cannot have this value. `source` says where it was set."""
    check, wanted = _CHECKS[name]
    if not check(value):
        raise ConfigurationError(f"{source} must be {wanted}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_ttl(value: Any) -> bool:
    return _positive(value) and value <= LONGEST_TTL


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


def _is_pending(value: Any) -> bool:
    return _is_count(value) and value <= MOST_PENDING


def is_limit(value: Any) -> bool:
    """Whether so many executions may hold a key."""
    return _is_count(value) and 1 <= value <= MOST_PLACES


def _is_limit_or_limits(value: Any) -> bool:
    limits = value if isinstance(value, list | tuple) else [value]
    return bool(limits) and all(is_limit(limit) or callable(limit) for limit in limits)


_CHECKS: dict[str, tuple[Check, str]] = {
    "key": (_is_key_or_keys, "a template over argument names, a callable, or a list of these"),
    "limit": (
        _is_limit_or_limits,
        f"a whole number from 1 to {MOST_PLACES}, a callable, or a list of these for a list of keys",
    ),
    "ttl": (_is_ttl, "a number of seconds above 0, at most 30 days"),
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
    "pending": (_is_pending, f"a whole number from 0 to {MOST_PENDING}"),
    "queue_ttl": (_positive, "a number of seconds above 0"),
    "duplicate": _one_of(*DUPLICATE_ACTIONS),
    "replicas": (_is_count, "a whole number, 0 or more"),
}
