"""From a task's call to its keys."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from celery_rlock import canonical
from celery_rlock.errors import ConfigurationError

#: A call's keys, each once and sorted: everybody who takes several takes them in one order.
KeysOf = Callable[[tuple[Any, ...], dict[str, Any]], tuple[str, ...]]

OneKey = str | Callable[..., str | Iterable[str]]
_Render = Callable[[dict[str, Any]], Iterable[str]]


def keys_of_call(task: Any, lock_key: OneKey | list[OneKey] | tuple[OneKey, ...] | None) -> KeysOf:
    """How `task` (its class) makes keys of a call's arguments; the same for every way to pass them."""
    signature = _signature(task)
    wanted = lock_key if isinstance(lock_key, list | tuple) else [lock_key]
    renderers = [_renderer(task, one, signature) for one in wanted]

    def keys_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(sorted({key for render in renderers for key in render(bound.arguments)}))

    return keys_of


def _signature(task: Any) -> inspect.Signature:
    signature = inspect.signature(task.run)
    if isinstance(inspect.getattr_static(task, "run"), staticmethod):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])  # without self


def _renderer(task: Any, lock_key: OneKey | None, signature: inspect.Signature) -> _Render:
    if lock_key is None:
        return lambda arguments: [_default_key(task.name, arguments)]
    if callable(lock_key):
        return lambda arguments: _called(lock_key, arguments)
    template = _Template.parse(lock_key, task.name, signature.parameters)
    return lambda arguments: [template.render(arguments)]


def _default_key(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}:{canonical.digest(arguments)}" if arguments else name


def _called(make_keys: Callable[..., str | Iterable[str]], arguments: dict[str, Any]) -> list[str]:
    made = make_keys(**arguments)
    keys = list(made) if isinstance(made, list | tuple | set | frozenset) else [made]
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ConfigurationError(f"lock_key must return a non-empty str, or several, not {made!r}")
    return keys  # type: ignore[return-value]


class _Field(NamedTuple):
    literal: str  # the text before the value
    name: str | None
    spec: str


class _Template:
    """`"transfer:{source}:{target}"`: different values never give the same text by running together."""

    def __init__(self, parts: list[_Field]) -> None:
        self._parts = parts
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
        _check_names([part.name for part in parts if part.name is not None], list(arguments), where)
        if any(part.name is not None and not part.literal for part in parts[1:]):
            raise ConfigurationError(f"{where}: put a text between two arguments, e.g. ':'")
        return cls(parts)

    def render(self, arguments: dict[str, Any]) -> str:
        return "".join(part.literal + self._value(part, arguments) for part in self._parts)

    def _value(self, part: _Field, arguments: dict[str, Any]) -> str:
        if part.name is None:
            return ""
        value = arguments[part.name]
        rendered = format(value, part.spec) if part.spec else canonical.text(value)
        return rendered.translate(self._escapes)


def _check_names(names: list[str], arguments: list[str], where: str) -> None:
    for name in names:
        if name not in arguments:
            known = ", ".join(arguments) or "no arguments"
            raise ConfigurationError(f"{where} names {name!r}, but the task has: {known}")
