"""`celery rlock watch`: list the locks again and again, as `top` lists processes."""

from __future__ import annotations

import itertools
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_rlock.cli import rows
from celery_rlock.cli.filters import Filter, filter_options
from celery_rlock.cli.session import LockCommand, Session, json_option
from celery_rlock.doctor.output import Output, Piece, counted, moment, styled
from celery_rlock.server.failures import FAILURES
from celery_rlock.server.lock_record import LockRecord

if TYPE_CHECKING:  # rich is an extra
    from rich.console import Console, RenderableType

_QUIT = "qQ\x03\x04"

#: Reads the locks anew.
Snapshot = Callable[[], list[LockRecord]]


@click.command(cls=LockCommand)
@filter_options
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two snapshots.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many snapshots.")
@json_option("Write one JSON document per snapshot, one per line.")
@click.pass_context
def watch(
    ctx: click.Context, /, *, interval: float, count: int | None, as_json: bool, **filters: Any
) -> None:
    """Watch the locks whose key matches PATTERN. The key q or Ctrl-C ends it.

    Without a terminal it writes a plain snapshot each time, until --count ends it.
    """
    session, chosen = Session(ctx, as_json=as_json), Filter(**filters)
    inventory = session.inventory

    def snapshot() -> list[LockRecord]:
        return chosen.sorted([record for batch in chosen.search(inventory) for record in batch])

    records = snapshot()  # a server that is down now ends the command; one that goes down later does not
    try:
        if session.output.console is not None and sys.stdin.isatty():
            _live(session.output.console, snapshot, records, interval, count)
        else:
            _plain(session.output, snapshot, records, interval, count)
    except KeyboardInterrupt:
        return


def _plain(
    output: Output, snapshot: Snapshot, records: list[LockRecord], interval: float, count: int | None
) -> None:
    for number in itertools.count(1):
        if output.as_json:
            shown = [rows.as_json(record) for record in records]
            output.document({"at": round(time.time(), 3), "locks": shown})
        else:
            output.row(f"# {moment(time.time())}  {summary(records)}")
            for record in records:
                output.row(*rows.cells(record))
        if number == count:
            return
        time.sleep(interval)
        records = snapshot()


def _live(
    console: Console, snapshot: Snapshot, records: list[LockRecord], interval: float, count: int | None
) -> None:
    from rich.live import Live  # noqa: PLC0415 - an extra

    problem = ""
    with _keys() as quits_within, Live(console=console, screen=True, auto_refresh=False) as live:
        for number in itertools.count(1):
            live.update(_page(console, records, problem), refresh=True)
            if number == count or quits_within(interval):
                return
            try:
                records, problem = snapshot(), ""
            except FAILURES as error:  # the last snapshot stays on the screen, below the error
                problem = f"no answer since {moment(time.time())}: {error}"


def _page(console: Console, records: list[LockRecord], problem: str) -> RenderableType:
    """As many locks as fit on the screen."""
    from rich.console import Group  # noqa: PLC0415 - an extra

    top: list[Piece] = [
        ("celery rlock", "bold"),
        f"  {moment(time.time())}  {summary(records)}  ",
        ("q quits", "dim"),
    ]
    lines: list[list[Piece]] = [top, [(problem, "red")]] if problem else [top]
    room = console.height - 2 * len(lines) - 1
    if console.width >= rows.TABLE_WIDTH:
        return Group(*(styled(*line) for line in lines), rows.table(records[:room]))
    blocks = [line for record in records[: max(1, room // 3)] for line in rows.lines(record)]
    return Group(*(styled(*line) for line in [*lines, *blocks]))


def summary(records: list[LockRecord]) -> str:
    states = Counter(record.state for record in records)
    kinds = ", ".join(f"{states[state]} {state}" for state in ("held", "queued", "resting") if states[state])
    return f"{kinds or 'no locks'}, {counted(sum(record.waiters for record in records), 'waiter')}"


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Inside, the terminal sends each key at once and does not echo it.

    Yields a function that waits so many seconds for a key that quits.
    """
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield lambda seconds: _quits(stdin, seconds)
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _quits(stdin: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([stdin], [], [], left)
        if ready:
            pressed = os.read(stdin, 64).decode(errors="replace")
            if not pressed or any(key in _QUIT for key in pressed):
                return True
    return False
