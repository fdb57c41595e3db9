"""A lock as a row of a table, as a few lines, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from celery_rlock.doctor.output import Output, Piece, counted, duration, styled
from celery_rlock.server.lock_record import LockRecord
from celery_rlock.server.owner import HELD

if TYPE_CHECKING:  # rich is an extra
    from rich.table import Table

#: A narrower terminal gets a few lines for each lock instead of a table.
TABLE_WIDTH = 160

#: These cells are never folded, so that a user can copy them.
_WHOLE = {"TASK ID", "TOKEN"}

_STYLES = {HELD: "green", "queued": "cyan", "resting": "yellow"}


class Column(NamedTuple):
    title: str
    cell: Callable[[LockRecord], str]
    right: bool = False


def process_of(record: LockRecord) -> str:
    """The holder's worker; for a queued lock, the process that published the task."""
    return record.owner.worker.partition("/")[0] if record.state == "queued" else record.owner.worker


def place(record: LockRecord) -> str:
    """Which of how many places the holder has, counted from 0: `3 of 20`. Empty if the key has only one."""
    return f"{record.slot} of {record.limit}" if record.limit > 1 else ""


COLUMNS = (
    Column("KEY", lambda record: record.key),
    Column("STATE", lambda record: record.state),
    Column("TASK", lambda record: record.task or "-"),
    Column("WORKER", process_of),
    Column("TASK ID", lambda record: record.owner.task_id),
    Column("HELD FOR", lambda record: duration(record.held_for), right=True),
    Column("LEASE LEFT", lambda record: duration(record.lease_left), right=True),
    Column("DEPTH", lambda record: str(record.depth), right=True),
    Column("TOKEN", lambda record: str(record.token), right=True),
    Column("WAITERS", lambda record: str(record.waiters), right=True),
    Column("PLACE", lambda record: place(record) or "-", right=True),
)

#: The values of `--sort`. Times, waiters and depths have the largest first.
ORDERS: dict[str, Callable[[LockRecord], Any]] = {
    "held": lambda record: -record.held_for,
    "lease": lambda record: record.lease_left,
    "waiters": lambda record: -record.waiters,
    "depth": lambda record: -record.depth,
    "token": lambda record: record.token,
    "key": lambda record: record.key,
    "task": lambda record: (record.task, record.key),
    "worker": lambda record: (record.owner.worker, record.key),
}


def as_json(record: LockRecord) -> dict[str, Any]:
    return {
        "key": record.key,
        "digested": record.digested,
        "redis_key": record.redis_keys.lock,
        "state": record.state,
        "task": record.task,
        "worker": process_of(record),
        "task_id": record.owner.task_id,
        "owner": str(record.owner),
        "since": record.since,
        "held_for": round(record.held_for, 3),
        "lease_left": record.lease_left,
        "depth": record.depth,
        "token": record.token,
        "waiters": record.waiters,
        "redelivery": record.redelivered,
        "slot": record.slot,
        "limit": record.limit,
        "replaced_by": record.replaced_by,
    }


def cells(record: LockRecord) -> list[str]:
    return [column.cell(record) for column in COLUMNS]


def holder(record: LockRecord) -> str:
    """The holder in a few words: `task[id] on worker`."""
    task = f"{record.task or 'RLock'}[{record.owner.task_id}]"
    if record.state == "queued":
        return f"{task}, published by {process_of(record)}"
    return f"{task} on {record.owner.worker}"


def lines(record: LockRecord) -> list[list[Piece]]:
    """The lock in three lines, for a narrow terminal."""
    times = f"{duration(record.held_for)}, lease {duration(record.lease_left)}"
    waiters = f", {counted(record.waiters, 'waiter')}" if record.waiters else ""
    where = f", place {place(record)}" if place(record) else ""
    return [
        [(record.key, "bold"), "  ", (record.state, _STYLES[record.state]), f" {times}{waiters}"],
        [f"  {holder(record)}"],
        [(f"  depth {record.depth}, token {record.token}{where}", "dim")],
    ]


def table(records: Iterable[LockRecord]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - an extra

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        shown.add_column(column.title, justify=justify, overflow="fold", no_wrap=column.title in _WHOLE)
    for record in records:
        style = {"KEY": "bold", "STATE": _STYLES[record.state]}
        shown.add_row(*(styled((column.cell(record), style.get(column.title, ""))) for column in COLUMNS))
    return shown


def write(output: Output, records: list[LockRecord]) -> None:
    """Write all of them to a terminal, as a table if it is wide enough."""
    if output.console is not None and output.width >= TABLE_WIDTH:
        output.console.print(table(records))
        return
    for record in records:
        for line in lines(record):
            output.line(*line)
