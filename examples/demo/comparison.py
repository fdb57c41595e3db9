"""The figures of both rounds, and whether the lock did its job."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from examples.demo.measuring import Outcome


def comparison(outcomes: Sequence[Outcome]) -> Table:
    """A table with one line for each round."""
    table = Table("", box=None, pad_edge=False)
    for column in ("published", "runs", "overlaps", "lost tasks"):
        table.add_column(column, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.round.title,
            str(len(outcome.publications)),
            str(len(outcome.runs)),
            _count(len(outcome.overlaps)),
            _count(len(outcome.lost)),
        )
    return table


def holds(locked: Outcome) -> bool:
    """Whether no two runs overlapped and no task was lost."""
    return not locked.overlaps and not locked.lost


def verdict(plain: Outcome, locked: Outcome) -> str:
    if not holds(locked):
        return "[bold red]The lock failed.[/]"
    if not plain.overlaps:
        return "This run shows nothing: no runs overlapped without the lock either. Run the demo again."
    return "[bold green]With LockedTask no two runs overlapped, and no task was lost.[/]"


def takeover(locked: Outcome, lock_ttl: float) -> str:
    """How long the lock of the killed worker kept other runs waiting."""
    if locked.takeover is None:
        return "No run started after the kill."
    killed_at, started_at = locked.takeover
    return (
        f"The next run started {started_at - killed_at:.1f} s after the lock's holder was killed,\n"
        f"when the holder's lease had ended (lock_ttl={lock_ttl:g} s)."
    )


def _count(failures: int) -> str:
    return f"[bold red]{failures}[/]" if failures else "[bold green]0[/]"
