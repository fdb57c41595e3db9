"""Makes the keys of a call from its arguments, which get a stable form."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import re
import string
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from celery_rlock.core.lock import MOST_PLACES
from celery_rlock.errors import ConfigurationError
from celery_rlock.options.arguments import Parameters
from celery_rlock.options.validation import is_limit

#: The keys of a call, each once, in sorted order: tasks that take several keys never wait in a circle.
KeysOf = Callable[[tuple[Any, ...], dict[str, Any]], tuple[str, ...]]

#: The limit of each key of a call that may be held more than once.
LimitsOf = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, int]]

OneLimit = int | Callable[..., int]
OneKey = str | Callable[..., str | Iterable[str]]
_Arguments = dict[str, Any]


class _Renderer(NamedTuple):
    """Makes keys from the arguments of a call."""

    wanted: frozenset[str]  #: the arguments without which it cannot
    render: Callable[[_Arguments], Iterable[str]]


def keys_of_call(
    name: str, parameters: Parameters, lock_key: OneKey | list[OneKey] | tuple[OneKey, ...] | None
) -> KeysOf:
    """How the task of this name makes keys from arguments. `f(1)` and `f(a=1)` give the same keys."""
    chosen = lock_key if isinstance(lock_key, list | tuple) else [lock_key]
    renderers = [_renderer(name, one, parameters.names) for one in chosen]
    wanted = frozenset().union(*(renderer.wanted for renderer in renderers))

    def keys_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        arguments = parameters.bind(args, kwargs, wanted)
        try:
            return tuple(sorted({key for renderer in renderers for key in renderer.render(arguments)}))
        except ConfigurationError as error:
            raise ConfigurationError(f"task {name}: {error}") from error

    return keys_of


def limits_of_call(
    name: str,
    parameters: Parameters,
    lock_key: OneKey | list[OneKey] | tuple[OneKey, ...] | None,
    lock_limit: OneLimit | list[OneLimit] | tuple[OneLimit, ...],
) -> LimitsOf:
    """How the task of this name finds the limit of each key of a call. A key without one has the limit 1."""
    if lock_limit == 1:
        return lambda _args, _kwargs: {}
    keys = lock_key if isinstance(lock_key, list | tuple) else [lock_key]
    limits = lock_limit if isinstance(lock_limit, list | tuple) else [lock_limit] * len(keys)
    known = frozenset(parameters.names)
    renderers = [_renderer(name, one, parameters.names) for one in keys]
    needed = (_needed_by(limit) & known for limit in limits if callable(limit))
    wanted = frozenset().union(*(renderer.wanted for renderer in renderers), *needed)

    def limits_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
        arguments = parameters.bind(args, kwargs, wanted)
        found: dict[str, int] = {}
        for renderer, limit in zip(renderers, limits, strict=True):
            number = _limit(name, limit, known, arguments)
            for key in renderer.render(arguments):
                found[key] = min(number, found.get(key, number))
        return found

    return limits_of


def _limit(task: str, limit: OneLimit, known: frozenset[str], arguments: _Arguments) -> int:
    if not callable(limit):
        return limit
    try:
        number = limit(**{name: arguments[name] for name in arguments if name in known})
    except MemoryError as error:  # Celery ends the whole worker after a MemoryError in a task
        raise ConfigurationError(f"there was not enough memory for lock_limit of task {task}") from error
    if not is_limit(number):
        raise ConfigurationError(
            f"lock_limit of task {task} must return a whole number from 1 to {MOST_PLACES}, not {number!r}"
        )
    return number


def _renderer(task: str, lock_key: OneKey | None, names: list[str]) -> _Renderer:
    if lock_key is None:
        return _Renderer(frozenset(), lambda arguments: [_default_key(task, arguments)])
    if callable(lock_key):
        known = frozenset(names)
        return _Renderer(_needed_by(lock_key) & known, partial(_called, lock_key, known))
    template = _Template.parse(lock_key, task, names)
    return _Renderer(template.names, lambda arguments: [template.render(arguments)])


def _default_key(name: str, arguments: _Arguments) -> str:
    return f"{name}:{digest(arguments)}" if arguments else name


def _needed_by(make_keys: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(make_keys).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return frozenset()
    return frozenset(
        parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty
    )


def _called(
    make_keys: Callable[..., str | Iterable[str]], known: frozenset[str], arguments: _Arguments
) -> list[str]:
    made = make_keys(**{name: arguments[name] for name in arguments if name in known})
    keys = list(made) if isinstance(made, list | tuple | set | frozenset) else [made]
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ConfigurationError(f"lock_key must return a non-empty str, or several, not {made!r}")
    return keys  # type: ignore[return-value]


class _Field(NamedTuple):
    literal: str  #: the text before the value
    name: str | None
    spec: str


class _Template:
    """A template such as `"transfer:{source}:{target}"`. Different values always give different texts."""

    def __init__(self, parts: list[_Field]) -> None:
        self._parts = parts
        self.names = frozenset(part.name for part in parts if part.name is not None)
        between = "".join(part.literal for part in parts[1:] if part.name is not None)
        self._escapes = {ord(char): f"%{ord(char):02X}" for char in between + "%"} if between else {}

    @classmethod
    def parse(cls, template: str, task: str, arguments: Iterable[str]) -> _Template:
        where = f"lock_key {template!r} of task {task}"
        try:
            pieces = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ConfigurationError(f"{where} is not a template: {error}") from None
        parts = [_Field(literal, name, spec or "") for literal, name, spec, _ in pieces]
        if any(conversion for *_, conversion in pieces):
            raise ConfigurationError(f"{where}: conversions such as '!r' have no stable form; use a callable")
        _check_names([part.name for part in parts if part.name is not None], list(arguments), where, template)
        if any(part.name is not None and not part.literal for part in parts[1:]):
            raise ConfigurationError(f"{where}: put a text between two arguments, e.g. ':'")
        return cls(parts)

    def render(self, arguments: dict[str, Any]) -> str:
        return "".join(part.literal + self._value(part, arguments) for part in self._parts)

    def _value(self, part: _Field, arguments: dict[str, Any]) -> str:
        if part.name is None:
            return ""
        value = arguments[part.name]
        rendered = format(value, part.spec) if part.spec else readable(value)
        return rendered.translate(self._escapes)


def _check_names(names: list[str], arguments: list[str], where: str, template: str) -> None:
    roots = [re.split(r"[.[]", name)[0] for name in names]
    if roots != names and set(roots) <= set(arguments):
        wanted = ", ".join(dict.fromkeys(roots))
        raise ConfigurationError(
            f"{where} looks into an argument, which a template cannot do; use a callable: "
            f"lock_key=lambda {wanted}, **_: f{template!r}"
        )
    for name in names:
        if name not in arguments:
            known = ", ".join(arguments) or "no arguments"
            raise ConfigurationError(f"{where} names {name!r}, but the task has: {known}")


def digest(value: Any) -> str:
    """32 hexadecimal digits for a value: the same in every process, different for different values.

    `1`, `True`, `1.0` and `"1"` differ. The order of a dict or a set does not matter. A value equals what it
    becomes in a message: a tuple its list, a dataclass or a pydantic model its dict.
    """
    try:
        return blake2b(_encode(value), digest_size=16).hexdigest()
    except RecursionError:
        raise ConfigurationError(
            "an argument is nested too deeply for a lock's key, or contains itself; set lock_key"
        ) from None


def readable(value: Any) -> str:
    """A value as it appears in a key. A value that is not plain appears as its digest."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | decimal.Decimal | uuid.UUID):
        return format(value) if not isinstance(value, enum.Enum) else str(value.value)
    return digest(value)


def _encode(value: Any) -> bytes:  # noqa: PLR0911 - one line per type
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, str):
        return _sized(b"s", str.__str__(value).encode("utf-8", "surrogatepass"))
    if isinstance(value, int):
        return _sized(b"i", b"%x" % int(value))
    if isinstance(value, float):
        return _sized(b"f", float.__repr__(value).encode())
    if isinstance(value, bytes | bytearray | memoryview):
        return _sized(b"y", bytes(value))
    if isinstance(value, list | tuple):
        return _joined(b"l", map(_encode, value))
    if isinstance(value, Mapping):
        return _joined(b"m", sorted(_encode(k) + _encode(v) for k, v in value.items()))
    if isinstance(value, AbstractSet):
        return _joined(b"S", sorted(map(_encode, value)))
    return _encode_object(value)


def _encode_object(value: Any) -> bytes:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return _joined(b"t", map(_encode, (type(value).__name__, value.isoformat())))
    if isinstance(value, datetime.timedelta):
        return _joined(b"T", map(_encode, (value.days, value.seconds, value.microseconds)))
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return _joined(b"v", map(_encode, (type(value).__name__, str(value))))
    if isinstance(value, enum.Enum):
        return _joined(b"e", map(_encode, (type(value).__qualname__, value.name)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if is_model(value):
        return _encode(value.model_dump(mode="json"))
    raise ConfigurationError(
        f"an argument of type {type(value).__qualname__} has no stable form for a lock's key: "
        "pass an id instead of the object, or set lock_key"
    )


def is_model(value: Any) -> bool:
    """Whether this is a pydantic model. There is none while pydantic is not imported."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _sized(tag: bytes, payload: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(payload), payload)


def _joined(tag: bytes, parts: Iterable[bytes]) -> bytes:
    return _sized(tag, b"".join(parts))
