"""The filters of `ls` and `watch`, and the search that applies them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_rlock.cli.rows import ORDERS
from celery_rlock.server.inventory import Inventory
from celery_rlock.server.lock_record import LockRecord

if TYPE_CHECKING:
    _ParamType = click.ParamType[float]  # not generic in every click that Celery accepts
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
            self.fail(f"{value!r} is not a duration: write 90, 90s, 1.5h or 2d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Filter:
    """Which locks to show. A pattern without wildcards may match anywhere in the text."""

    pattern: str | None = None
    task: str | None = None
    worker: str | None = None
    older_than: float | None = None
    sort: str | None = None

    def search(self, inventory: Inventory) -> Iterator[list[LockRecord]]:
        """The matching locks, in batches as they are found; a batch may be empty."""
        for batch in inventory.locks(self._matches_key):
            yield [record for record in batch if self._matches(record)]

    def sorted(self, records: list[LockRecord]) -> list[LockRecord]:
        return sorted(records, key=ORDERS[self.sort or "held"])

    def _matches_key(self, key: str) -> bool:
        return _matches(self.pattern, key)

    def _matches(self, record: LockRecord) -> bool:
        return (
            _matches(self.task, record.task)
            and _matches(self.worker, record.owner.worker)
            and (self.older_than is None or record.held_for >= self.older_than)
        )


def filter_options(command: F) -> F:
    """PATTERN, --task, --worker, --older-than and --sort."""
    for decorate in (
        click.option(
            "--sort",
            type=click.Choice(list(ORDERS)),
            help="Order of the rows, which are then written after the search. On a terminal: held.",
        ),
        click.option(
            "--older-than", type=Seconds(), help="Only locks held at least this long: 90, 90s, 15m, 2h, 1d."
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
