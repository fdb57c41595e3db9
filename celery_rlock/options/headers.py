"""The headers that celery-rlock puts into a task's message, read in one place into typed, bounded values.

A message may come from any program that can write to the broker. Reading never raises: a header that is wrong
becomes `LockHeaders.error`, which fails the task in the pool process, where Celery expects errors.
"""

from __future__ import annotations

import hmac
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from celery_rlock.core.lock import LONGEST_TTL
from celery_rlock.errors import ConfigurationError
from celery_rlock.options.options import NAMES, for_one_call
from celery_rlock.server.lock_server import LockServer
from celery_rlock.server.owner import new_delivery
from celery_rlock.server.redis_keys import RedisKeys

#: The options of this call only.
OPTIONS = "rlock_options"

#: How often the message was published again, and why.
BUSY_ATTEMPTS = "rlock_attempts"
UNAVAILABLE_ATTEMPTS = "rlock_unavailable"
REDELIVERY_ATTEMPTS = "rlock_redelivery"

#: When the task first found the lock busy, by the server's clock. It decides the place in line.
SINCE = "rlock_since"

#: Proves that a worker wrote `rlock_since`.
SEAL = "rlock_seal"

#: The Redis name of the lock that the task waits for.
WAITS_FOR = "rlock_waits_for"

#: The retry count at which the task waits. After a retry, the other headers of a waiter do not count.
RETRIES = "rlock_retries"

#: What the worker's parent process adds to a request.
DELIVERY = "rlock_delivery"

#: The fields of `LockHeaders` that count how often a message was published again.
Counter = Literal["busy_attempts", "unavailable_attempts", "redelivery_attempts"]

_MOST_ATTEMPTS = 1_000_000_000
_LAST_MOMENT = 2**53
_LONGEST_NAME = 1_000
_LONGEST_OPTION = 40
_SHORTEST_SECONDS = 0.01
_NEVER_TINY = ("ttl", "backoff", "backoff_max")  # they decide how often Redis is asked
_LONGEST_TEMPLATE = 500
_MOST_TEMPLATES = 100
_MOST_FIELDS = 10

#: A format spec with a number of four digits or more, such as `{a:>700000000}`.
_WIDE_SPEC = re.compile(r"\{[^{}]*:[^{}]*\d{4}")


class Delivery(NamedTuple):
    """What the worker's parent process knows about one delivery of a message.

    The type proves that this worker made it: what arrives in a message is a list at most.
    """

    name: str  #: the nonce in the owner's name
    received: float  #: when the worker received the message, in seconds since the epoch
    sends_events: bool  #: whether the worker sends task events
    content_type: str | None = None  #: how the message's body is serialized


@dataclass(frozen=True)
class LockHeaders:
    """Our headers of one message. If `error` is set, one of them is wrong and the other fields are empty."""

    #: The options of this call, by their names after `lock_`.
    options: Mapping[str, Any] = field(default_factory=dict)
    busy_attempts: int = 0
    unavailable_attempts: int = 0
    redelivery_attempts: int = 0
    #: When the task first found the lock busy, by the server's clock in microseconds; 0: it did not.
    #: Only a claim: see `proven_since`.
    since: int = 0
    seal: str = ""
    #: The Redis name that the message claims to wait for. Compare it with the task's own keys.
    waits_for: str = ""
    #: The retry count at which the task waits; None: the message does not say.
    retries: int | None = None
    error: ConfigurationError | None = None

    @property
    def attempts(self) -> int:
        """How often the message was published again, for any reason."""
        return self.busy_attempts + self.unavailable_attempts + self.redelivery_attempts

    @property
    def is_waiter(self) -> bool:
        """Whether we published this message again because its task could not have its lock."""
        return self.attempts > 0

    @property
    def counter(self) -> Counter:
        """Why the message was last published again, as far as the counters tell."""
        if self.busy_attempts:
            return "busy_attempts"
        return "unavailable_attempts" if self.unavailable_attempts else "redelivery_attempts"

    def count(self, counter: Counter) -> int:
        value: int = getattr(self, counter)
        return value

    def counted(self, counter: Counter, attempts: int, **changes: Any) -> LockHeaders:
        """These headers with this number of attempts."""
        values: dict[str, Any] = {**changes, counter: min(attempts, _MOST_ATTEMPTS)}
        return replace(self, **values)

    def without_waiting(self) -> LockHeaders:
        """The headers of a task that runs: its options stay, how it waited does not."""
        return LockHeaders(options=self.options) if self is not NO_HEADERS else self

    def as_dict(self) -> dict[str, Any]:
        """What goes into a message."""
        fields = {name: attribute for name, (attribute, _) in _READERS.items()}
        return {
            name: getattr(self, fields[name])
            for name in fields
            if getattr(self, fields[name]) != getattr(NO_HEADERS, fields[name])
        }


NO_HEADERS = LockHeaders()


def read_headers(found: Mapping[str, Any], task: str) -> LockHeaders:
    """Our headers among those of a message, of a request, or of the options of a call. Never raises.

    Celery keeps headers that were given as `headers={"headers": {…}}`, and those of an eager call, one level
    deeper. There they count too. How a task waited counts for the retry at which it waited only: Celery sends
    our headers on when the task retries before its run, or when its process is lost.
    """
    nested = found.get("headers")
    given: dict[str, Any] = {}
    for level in (nested, found) if isinstance(nested, dict) else (found,):
        ours = level.keys() & _READERS.keys()
        if ours:  # most messages have none
            given |= {name: level[name] for name in ours if level[name] is not None}
    if not given:
        return NO_HEADERS
    try:
        headers = LockHeaders(
            **{_READERS[name][0]: _READERS[name][1](given[name], name, task) for name in given}
        )
    except ConfigurationError as error:
        return LockHeaders(error=error)
    is_of_this_retry = headers.retries is None or found.get("retries", headers.retries) == headers.retries
    return headers if is_of_this_retry else headers.without_waiting()


def write_headers(headers: MutableMapping[str, Any], ours: LockHeaders) -> None:
    """Put our headers into those of a message, instead of any that are there."""
    for name in _ALL_NAMES & headers.keys():  # most messages have one of them: to pop each name costs 2 µs
        del headers[name]
    if ours is not NO_HEADERS:
        headers.update(ours.as_dict())


def delivery_of(found: Mapping[str, Any]) -> Delivery | None:
    """What this worker's parent process added to a request; None if another program wrote that header."""
    delivery = found.get(DELIVERY)
    return delivery if isinstance(delivery, Delivery) else None


def name_delivery(found: Mapping[str, Any]) -> str:
    """A new name for one delivery of the message with these headers."""
    return new_delivery(_count(found.get("retries")), _count(found.get("replaced_task_nesting")))


def _count(value: Any) -> int:
    """One of Celery's own counters. A message may say anything there."""
    return value if isinstance(value, int) and 0 < value <= _MOST_ATTEMPTS else 0


def sealed(
    headers: LockHeaders, lock_server: LockServer, task_id: str, all_keys: Iterable[RedisKeys]
) -> LockHeaders:
    """These headers with the proof that a worker wrote their `since`, for this task and its keys."""
    return replace(headers, seal=lock_server.seal(_sealed_text(headers.since, task_id, all_keys)))


def proven_since(
    headers: LockHeaders, lock_server: LockServer, task_id: str, all_keys: Iterable[RedisKeys]
) -> int:
    """When the task first found its lock busy; 0 if no worker has written that.

    Without the proof, a message could take any place in the line.
    """
    if not headers.since or not headers.seal:
        return 0
    seal = lock_server.seal(_sealed_text(headers.since, task_id, all_keys))
    return headers.since if hmac.compare_digest(seal.encode(), headers.seal.encode()) else 0


def _sealed_text(since: int, task_id: str, all_keys: Iterable[RedisKeys]) -> str:
    return "\n".join([str(since), str(task_id), *(redis_keys.lock for redis_keys in all_keys)])


def check_call_options(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one call, by their names after `lock_`, if a message may carry them."""
    unknown = next((name for name in values if name not in NAMES), None)
    if unknown is not None:  # a suggestion for a name of any length would take long
        for_one_call(task, {f"lock_{unknown[:_LONGEST_OPTION]}": None})
    for name, value in values.items():
        _check_size(name, value, f"lock_{name} of a call of {task}")
    return for_one_call(task, {f"lock_{name}": value for name, value in values.items()})


def _check_size(name: str, value: Any, where: str) -> None:
    if isinstance(value, list | tuple):
        if len(value) > _MOST_TEMPLATES:
            raise ConfigurationError(f"{where} must have at most {_MOST_TEMPLATES} entries, not {len(value)}")
        for one in value:
            if not isinstance(one, int):  # a number is checked later
                _check_template(one, where)
    elif isinstance(value, int | float):
        if not abs(value) <= LONGEST_TTL:  # NaN too
            raise ConfigurationError(f"{where} must be at most {LONGEST_TTL:.0f}, not {_shown(value)}")
        if name in _NEVER_TINY and 0 < value < _SHORTEST_SECONDS:
            raise ConfigurationError(f"{where} must be at least {_SHORTEST_SECONDS} seconds, not {value!r}")
    elif value is not None:
        _check_template(value, where)


def _check_template(value: Any, where: str) -> None:
    if callable(value):
        return  # refused later, with a text of its own
    if not isinstance(value, str):
        raise ConfigurationError(f"{where} cannot be {_shown(value)}")
    if len(value) > _LONGEST_TEMPLATE:
        raise ConfigurationError(
            f"{where} must have at most {_LONGEST_TEMPLATE} characters, not {len(value)}"
        )
    if value.count("{") > _MOST_FIELDS:
        raise ConfigurationError(f"{where} must name at most {_MOST_FIELDS} arguments")
    if _WIDE_SPEC.search(value):
        raise ConfigurationError(f"{where} must have no width or precision over 999: {_shown(value)}")


def _read_options(value: Any, name: str, task: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(name, task, "a map of options", value)
    return check_call_options(task, value)


def _read_count(value: Any, name: str, task: str) -> int:
    return _whole_number(value, name, task, _MOST_ATTEMPTS)


def _read_moment(value: Any, name: str, task: str) -> int:
    return _whole_number(value, name, task, _LAST_MOMENT)


def _whole_number(value: Any, name: str, task: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise _wrong(name, task, f"a whole number from 0 to {most}", value)
    return value


def _read_name(value: Any, name: str, task: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise _wrong(name, task, f"a text of at most {_LONGEST_NAME} characters", value)
    return value


def _wrong(name: str, task: str, wanted: str, value: Any) -> ConfigurationError:
    return ConfigurationError(f"header {name} of a message of {task} must be {wanted}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """A short text on one line, however large the value is."""
    return reprlib.repr(value)


#: The field of `LockHeaders` for each header, and how it is read.
_READERS: dict[str, tuple[str, Callable[[Any, str, str], Any]]] = {
    OPTIONS: ("options", _read_options),
    BUSY_ATTEMPTS: ("busy_attempts", _read_count),
    UNAVAILABLE_ATTEMPTS: ("unavailable_attempts", _read_count),
    REDELIVERY_ATTEMPTS: ("redelivery_attempts", _read_count),
    SINCE: ("since", _read_moment),
    SEAL: ("seal", _read_name),
    WAITS_FOR: ("waits_for", _read_name),
    RETRIES: ("retries", _read_count),
}

#: All our headers.
ALL_HEADERS = (*_READERS, DELIVERY)
_ALL_NAMES = frozenset(ALL_HEADERS)
