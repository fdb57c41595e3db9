"""`celery rlock ls`: list the locks that are held now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import click

from celery_rlock.cli import rows
from celery_rlock.cli.filters import Filter, filter_options
from celery_rlock.cli.session import LockCommand, Session, json_option
from celery_rlock.doctor.output import ExitCode, Output
from celery_rlock.server.inventory import Inventory
from celery_rlock.server.lock_record import LockRecord

#: A search that takes longer than this shows a progress bar.
_QUICK = 0.5

#: The most keys to report that are no locks.
_FOREIGN_SHOWN = 5


@click.command(cls=LockCommand)
@filter_options
@json_option("Write one JSON object per lock, one per line, as the search finds them.")
@click.pass_context
def ls(ctx: click.Context, /, *, as_json: bool, **filters: Any) -> None:
    """List the locks whose key matches PATTERN: the holder, since when, and the number of waiters.

    The search uses SCAN in small steps, on every primary of a Cluster. In a pipe, each row is written as soon
    as it is found, with tabs between the cells. Exit code 1: no lock matches.
    """
    session, chosen = Session(ctx, as_json=as_json), Filter(**filters)
    inventory, output = session.inventory, session.output
    found = chosen.search(inventory)
    if output.is_terminal and not as_json:
        count = _show(output, inventory, chosen, found)
    elif chosen.sort:
        count = _stream(output, [chosen.sorted([record for batch in found for record in batch])])
    else:
        count = _stream(output, found)
    _report_foreign(inventory)
    if not count:
        output.problem("no lock matches" if any(filters.values()) else "no lock is held")
    session.end(ExitCode.FINE if count else ExitCode.PROBLEM)


def _stream(output: Output, found: Iterable[list[LockRecord]]) -> int:
    count = 0
    for batch in found:
        for record in batch:
            if output.as_json:
                output.document(rows.as_json(record))
            else:
                if not count:
                    output.row(*(column.title for column in rows.COLUMNS))
                output.row(*rows.cells(record))
            count += 1
    return count


def _show(output: Output, inventory: Inventory, chosen: Filter, found: Iterator[list[LockRecord]]) -> int:
    if output.console is not None:
        found = _with_progress(output, inventory, found)
    records = chosen.sorted([record for batch in found for record in batch])
    rows.write(output, records)
    return len(records)


def _with_progress(
    output: Output, inventory: Inventory, found: Iterator[list[LockRecord]]
) -> Iterator[list[LockRecord]]:
    from rich.progress import Progress  # noqa: PLC0415 - an extra

    bar = Progress(console=output.console, transient=True)
    task, began = bar.add_task("searching for locks"), monotonic()
    try:
        for batch in found:
            if not bar.live.is_started and monotonic() - began > _QUICK:
                bar.start()
            bar.update(task, total=inventory.progress.keys, completed=inventory.progress.looked_at)
            yield batch
    finally:
        if bar.live.is_started:
            bar.stop()


def _report_foreign(inventory: Inventory) -> None:
    for name in inventory.progress.foreign[:_FOREIGN_SHOWN]:
        Output.problem(
            f"the Redis key {name} is not a lock, so no lock can be taken there: delete it, or change "
            "rlock_prefix"
        )
