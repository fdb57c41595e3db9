"""A lock as a row of a table, as a few lines, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from celery_rlock.core.entry import HELD, Entry
from celery_rlock.ops.output import Output, Piece, styled
from celery_rlock.ops.wording import counted, duration

if TYPE_CHECKING:
    from rich.table import Table

#: Narrower terminals get a few lines for each lock instead of a table.
TABLE_WIDTH = 160

#: Cells that somebody copies.
_WHOLE = {"TASK ID", "TOKEN"}

_STYLES = {HELD: "green", "queued": "cyan", "resting": "yellow"}


class Column(NamedTuple):
    title: str
    cell: Callable[[Entry], str]
    right: bool = False


def process_of(entry: Entry) -> str:
    """The worker; of what is queued, who published it."""
    return entry.owner.worker.partition("/")[0] if entry.state == "queued" else entry.owner.worker


COLUMNS = (
    Column("KEY", lambda entry: entry.key),
    Column("STATE", lambda entry: entry.state),
    Column("TASK", lambda entry: entry.task or "-"),
    Column("WORKER", process_of),
    Column("TASK ID", lambda entry: entry.owner.task_id),
    Column("HELD FOR", lambda entry: duration(entry.held_for), right=True),
    Column("LEASE LEFT", lambda entry: duration(entry.lease_left), right=True),
    Column("DEPTH", lambda entry: str(entry.depth), right=True),
    Column("TOKEN", lambda entry: str(entry.token), right=True),
    Column("WAITERS", lambda entry: str(entry.waiters), right=True),
)

#: What `--sort` knows; the longest, the most and the largest first.
ORDERS: dict[str, Callable[[Entry], Any]] = {
    "held": lambda entry: -entry.held_for,
    "lease": lambda entry: entry.lease_left,
    "waiters": lambda entry: -entry.waiters,
    "depth": lambda entry: -entry.depth,
    "token": lambda entry: entry.token,
    "key": lambda entry: entry.key,
    "task": lambda entry: (entry.task, entry.key),
    "worker": lambda entry: (entry.owner.worker, entry.key),
}


def as_json(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "digested": entry.digested,
        "redis_key": entry.name.lock,
        "state": entry.state,
        "task": entry.task,
        "worker": process_of(entry),
        "task_id": entry.owner.task_id,
        "owner": str(entry.owner),
        "since": entry.since,
        "held_for": round(entry.held_for, 3),
        "lease_left": entry.lease_left,
        "depth": entry.depth,
        "token": entry.token,
        "waiters": entry.waiters,
        "copy": entry.copy,
    }


def cells(entry: Entry) -> list[str]:
    return [column.cell(entry) for column in COLUMNS]


def who(entry: Entry) -> str:
    """The holder in a few words."""
    task = f"{entry.task or 'RLock'}[{entry.owner.task_id}]"
    if entry.state == "queued":
        return f"{task}, published by {process_of(entry)}"
    return f"{task} on {entry.owner.worker}"


def lines(entry: Entry) -> list[list[Piece]]:
    """For a narrow terminal."""
    times = f"{duration(entry.held_for)}, lease {duration(entry.lease_left)}"
    waiters = f", {counted(entry.waiters, 'waiter')}" if entry.waiters else ""
    return [
        [(entry.key, "bold"), "  ", (entry.state, _STYLES[entry.state]), f" {times}{waiters}"],
        [f"  {who(entry)}"],
        [(f"  depth {entry.depth}, token {entry.token}", "dim")],
    ]


def table(entries: Iterable[Entry]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - an extra

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        shown.add_column(column.title, justify=justify, overflow="fold", no_wrap=column.title in _WHOLE)
    for entry in entries:
        style = {"KEY": "bold", "STATE": _STYLES[entry.state]}
        shown.add_row(*(styled((column.cell(entry), style.get(column.title, ""))) for column in COLUMNS))
    return shown


def write(output: Output, entries: list[Entry]) -> None:
    """All of them, on a terminal."""
    if output.console is not None and output.width >= TABLE_WIDTH:
        output.console.print(table(entries))
        return
    for entry in entries:
        for line in lines(entry):
            output.line(*line)
