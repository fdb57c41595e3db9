"""Without the lock and with it, in figures, and what they say of the lock."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from examples.demo.measuring import Outcome


def comparison(outcomes: Sequence[Outcome]) -> Table:
    """A line a round."""
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
    """Whether the lock did its job: no two runs at once, and no task lost."""
    return not locked.overlaps and not locked.lost


def verdict(plain: Outcome, locked: Outcome) -> str:
    if not holds(locked):
        return "[bold red]The lock failed.[/]"
    if not plain.overlaps:
        return "Inconclusive: nothing overlapped without the lock either. Run it again."
    return "[bold green]With LockedTask no two runs overlapped, and no task was lost.[/]"


def takeover(locked: Outcome) -> str:
    """How soon the killed holder had a successor."""
    if locked.takeover is None:
        return "No run started after the kill."
    killed_at, started_at = locked.takeover
    return f"From the kill of the holder to its successor's start: {started_at - killed_at:.1f} s"


def _count(failures: int) -> str:
    return f"[bold red]{failures}[/]" if failures else "[bold green]0[/]"
