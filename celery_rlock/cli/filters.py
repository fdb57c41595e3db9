"""Which locks are wanted: the filters of `ls` and `watch`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_rlock.core.entry import Entry
from celery_rlock.ops.rows import ORDERS

if TYPE_CHECKING:
    _ParamType = click.ParamType[float]  # generic, but not in every click that Celery takes
else:
    _ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Seconds(_ParamType):
    """`90`, `1.5h`, `2m`, `1d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a time: write 90, 90s, 1.5h or 2d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Filter:
    """A pattern without wildcards is looked for anywhere in the text."""

    pattern: str | None = None
    task: str | None = None
    worker: str | None = None
    older_than: float | None = None
    sort: str | None = None

    def wants_key(self, key: str) -> bool:
        return _matches(self.pattern, key)

    def wants(self, entry: Entry) -> bool:
        return (
            _matches(self.task, entry.task)
            and _matches(self.worker, entry.owner.worker)
            and (self.older_than is None or entry.held_for >= self.older_than)
        )

    def sorted(self, entries: list[Entry]) -> list[Entry]:
        return sorted(entries, key=ORDERS[self.sort or "held"])


def filter_options(command: F) -> F:
    """PATTERN, --task, --worker, --older-than and --sort."""
    for decorate in (
        click.option(
            "--sort",
            type=click.Choice(list(ORDERS)),
            help="Order of the rows; needs all of them before the first is written. On a terminal: held.",
        ),
        click.option(
            "--older-than", type=Seconds(), help="Only locks held for so long: 90, 90s, 15m, 2h, 1d."
        ),
        click.option(
            "--worker", metavar="PATTERN", help="Only locks held in workers whose nodename matches."
        ),
        click.option("--task", metavar="PATTERN", help="Only locks of tasks whose name matches."),
        click.argument("pattern", required=False),
    ):
        command = decorate(command)
    return command


def _matches(pattern: str | None, text: str) -> bool:
    if pattern is None:
        return True
    if any(char in pattern for char in "*?["):
        return fnmatchcase(text, pattern)
    return pattern in text
