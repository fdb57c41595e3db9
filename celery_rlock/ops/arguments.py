"""A task's arguments as they are written on a command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def parse(
    words: Sequence[str], args: str | None, kwargs: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`7 amount=3` is `(7,), {"amount": 3}`. A value is JSON, or else the text itself.

    `args` and `kwargs` are JSON for what words cannot say: a positional text with `=`, say.
    """
    positional = [*_json("--args", args or "[]", list)]
    named = {**_json("--kwargs", kwargs or "{}", dict)}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            named[name] = _value(value)
        else:
            positional.append(_value(word))
    return tuple(positional), named


def _json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}", param_hint=option) from None
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise click.BadParameter(f"must be {wanted}, not {text!r}", param_hint=option)
    return value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
