"""Names the arguments of a call, as the task's function will receive them."""

from __future__ import annotations

import dis
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from celery.utils.annotations import annotation_issubclass, get_optional_arg

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = frozenset({str, int, float, bool, type(None)})

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # An annotation may name a type that is imported for type checkers only.
    _signature = partial(inspect.signature, follow_wrapped=False, annotation_format=Format.STRING)
else:
    _signature = partial(inspect.signature, follow_wrapped=False)


class Parameters:
    """The parameters of a task, which give names to the arguments of its calls.

    Celery runs what the decorators have made of the user's function. A decorator that takes `*args` hides the
    names, so they come from the function that it wraps. The decorator may pass more than the caller gave,
    such as a database session: see `bind`.
    """

    def __init__(self, task: Any) -> None:
        run = inspect.getattr_static(task, "run")
        takes_self = not isinstance(run, staticmethod) and hasattr(run, "__get__")
        layers = list(_layers(getattr(run, "__func__", run)))
        parameters = list(_signature(layers[-1]).parameters.values())
        for _ in range(takes_self + sum(map(_put_in_front, layers[:-1]))):
            if parameters and parameters[0].kind in _POSITIONAL:
                del parameters[0]
        self._signature = inspect.Signature(parameters)
        self._models = _models(layers)

    @property
    def are_plain(self) -> bool:
        """Whether `bind` validates no models and adds plain defaults only, so that it runs no user's code."""
        defaults = (parameter.default for parameter in self._signature.parameters.values())
        return not self._models and all(
            default is inspect.Parameter.empty or is_plain(default) for default in defaults
        )

    @property
    def names(self) -> list[str]:
        return list(self._signature.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
        """The arguments by name, with defaults. Models of a task with `pydantic=True` are validated.

        A decorator or a base class with a `__call__` may add arguments before the function gets them, or take
        some away. Then every argument that fits gets its name. Raises TypeError if one of the `wanted` names
        gets none: no decorator adds an argument that the key is made of.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as mismatch:
            arguments = self._bind_what_fits(args, kwargs, wanted)
            if arguments is None:
                raise mismatch from None
        else:
            bound.apply_defaults()
            arguments = bound.arguments
        for name, model in self._models.items():
            if name in arguments:
                arguments[name] = _validated(model, arguments[name])
        return arguments

    def _bind_what_fits(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: frozenset[str]
    ) -> dict[str, Any] | None:
        parameters = list(self._signature.parameters.values())
        positional = sum(parameter.kind in _POSITIONAL for parameter in parameters)
        fitting = {name: kwargs[name] for name in kwargs if name in self._signature.parameters}
        for added in range(positional + 1):
            try:
                bound = inspect.Signature(parameters[added:]).bind_partial(*args, **fitting)
            except TypeError:
                continue
            bound.apply_defaults()
            if wanted <= bound.arguments.keys():
                return {**kwargs, **bound.arguments}
        return {"*": args, **kwargs} if wanted <= kwargs.keys() else None


def is_plain(value: Any) -> bool:
    """Whether the value is made of JSON's types alone, which have no code of the user."""
    if type(value) in _PLAIN:
        return True
    if type(value) in {list, tuple}:
        return all(map(is_plain, value))
    return type(value) is dict and all(map(is_plain, value)) and all(map(is_plain, value.values()))


def _layers(function: Any) -> Iterator[Any]:
    """The function that Celery runs, then what it wraps, up to the first one that says its parameters."""
    yield function
    while _hides_parameters(function):
        function = function.__wrapped__
        yield function


def _hides_parameters(function: Any) -> bool:
    if not hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return False
    return any(parameter.kind in _VARIADIC for parameter in _signature(function).parameters.values())


def _put_in_front(wrapper: Any) -> int:
    """How many arguments a decorator puts before the caller's: one if it calls `fun(session, *args)`.

    Only its code says so. `fun(session, *args)` loads `fun`, loads `session`, makes a list of one, and
    extends it by `args`. What looks different counts as 0.
    """
    code = getattr(wrapper, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARARGS:
        return 0
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
    wrapped = inspect.getclosurevars(wrapper).nonlocals
    instructions = list(dis.get_instructions(wrapper))
    depth, loaded = 0, None
    for this, following, then in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if this.opname == "LOAD_DEREF" and wrapped.get(this.argval) is wrapper.__wrapped__:
            loaded = depth
        is_list = this.opname == "BUILD_LIST" and following.argval == rest and then.opname == "LIST_EXTEND"
        # Between the function and the list's items there is nothing, or from Python 3.13 on a null.
        if is_list and loaded is not None and depth - (this.arg or 0) - loaded in {1, 2}:
            return max(0, (this.arg or 0) - int(code.co_argcount))
        depth += dis.stack_effect(this.opcode, this.arg, jump=False)
    return 0


def _models(layers: list[Any]) -> dict[str, Any]:
    """The pydantic model of each parameter that Celery validates, which it does with `pydantic=True` only."""
    if not any(_is_pydantic_wrapper(layer) for layer in layers):
        return {}
    from pydantic import BaseModel  # noqa: PLC0415 - only where Celery has imported it too

    function = layers[-1]
    try:
        hints = typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError):  # a circular import, as in Celery's own wrapper
        hints = dict(getattr(function, "__annotations__", {}))
    models = {name: get_optional_arg(hint) or hint for name, hint in hints.items() if name != "return"}
    return {name: model for name, model in models.items() if annotation_issubclass(model, BaseModel)}


def _is_pydantic_wrapper(function: Callable[..., Any]) -> bool:
    """Celery's wrapper (5.5: `celery.app.base.pydantic_wrapper`) has the user's name, but its own globals."""
    is_celerys = getattr(function, "__globals__", {}).get("__name__") == "celery.app.base"
    return is_celerys and hasattr(function, "__wrapped__")


def _validated(model: Any, value: Any) -> Any:
    """The model that the task gets. What cannot be validated stays as it is: Celery's wrapper will raise."""
    try:
        return model.model_validate(value) if value is not None else None
    except Exception:  # noqa: BLE001 - the user's validators may raise anything, and may need Celery's context
        return value
