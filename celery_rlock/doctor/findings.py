"""What a check finds, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Level = Literal["ok", "warn", "error", "skip"]


_SHOWN = 3


class Finding(NamedTuple):
    """Whatever is not ok says what to do."""

    level: Level
    what: str
    todo: str = ""


class NotChecked(Exception):
    """Says why; the check is skipped."""


def ok(what: str) -> Finding:
    return Finding("ok", what)


def warn(what: str, todo: str) -> Finding:
    return Finding("warn", what, todo)


def error(what: str, todo: str) -> Finding:
    return Finding("error", what, todo)


def named(names: Iterable[str]) -> str:
    """`a, b, c and 4 more`."""
    ordered = sorted(set(names))
    rest = len(ordered) - _SHOWN
    shown = ", ".join(ordered[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown


def located(findings: Iterable[Finding], where: str) -> Iterator[Finding]:
    """The same, saying where."""
    for finding in findings:
        yield finding._replace(what=f"{where}: {finding.what}")
