"""`celery rlock ls`: the locks that are held now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import click

from celery_rlock.core.entry import Entry
from celery_rlock.core.inventory import Inventory
from celery_rlock.ops import rows
from celery_rlock.ops.filters import Filter, filter_options
from celery_rlock.ops.output import Output
from celery_rlock.ops.session import FINE, PROBLEM, LockCommand, Session, json_option

#: A search that is over before shows no progress bar.
_PATIENCE = 0.5
_FOREIGN_SHOWN = 5


@click.command(cls=LockCommand)
@filter_options
@json_option("One JSON object a lock, a line each, as they are found.")
@click.pass_context
def ls(ctx: click.Context, /, *, as_json: bool, **wanted: Any) -> None:
    """List the locks whose key matches PATTERN: who holds each, for how long, and how many wait.

    Found by SCAN in small steps, on every primary of a Cluster. Piped, the rows are written as they are
    found, between tabs. Exit code 1: there is none.
    """
    session, chosen = Session(ctx, as_json=as_json), Filter(**wanted)
    inventory, output = session.inventory, session.output
    found = _wanted(inventory, chosen)
    if output.is_terminal and not as_json:
        count = _show(output, inventory, chosen, found)
    else:
        ordered = chosen.sorted([entry for batch in found for entry in batch]) if chosen.sort else None
        count = _stream(output, found if ordered is None else [ordered])
    _tell_foreign(inventory)
    if not count:
        output.problem("no lock matches" if any(wanted.values()) else "no lock is held")
    session.end(FINE if count else PROBLEM)


def snapshot(inventory: Inventory, chosen: Filter) -> list[Entry]:
    """All that are wanted, in their order."""
    return chosen.sorted([entry for batch in _wanted(inventory, chosen) for entry in batch])


def _wanted(inventory: Inventory, chosen: Filter) -> Iterator[list[Entry]]:
    for batch in inventory.locks(chosen.wants_key):
        yield [entry for entry in batch if chosen.wants(entry)]


def _stream(output: Output, found: Iterable[list[Entry]]) -> int:
    count = 0
    for batch in found:
        for entry in batch:
            if output.as_json:
                output.document(rows.as_json(entry))
            else:
                if not count:
                    output.row(*(column.title for column in rows.COLUMNS))
                output.row(*rows.cells(entry))
            count += 1
    return count


def _show(output: Output, inventory: Inventory, chosen: Filter, found: Iterator[list[Entry]]) -> int:
    if output.console is not None:
        found = _with_progress(output, inventory, found)
    entries = chosen.sorted([entry for batch in found for entry in batch])
    rows.write(output, entries)
    return len(entries)


def _with_progress(
    output: Output, inventory: Inventory, found: Iterator[list[Entry]]
) -> Iterator[list[Entry]]:
    from rich.progress import Progress  # noqa: PLC0415 - an extra

    bar = Progress(console=output.console, transient=True)
    task, began = bar.add_task("looking for locks"), monotonic()
    try:
        for batch in found:
            if not bar.live.is_started and monotonic() - began > _PATIENCE:
                bar.start()
            bar.update(task, total=inventory.progress.keys, completed=inventory.progress.looked_at)
            yield batch
    finally:
        if bar.live.is_started:
            bar.stop()


def _tell_foreign(inventory: Inventory) -> None:
    for name in inventory.progress.foreign[:_FOREIGN_SHOWN]:
        Output.problem(
            f"not a lock, and no lock can be taken there: {name} (delete it, or change rlock_prefix)"
        )
