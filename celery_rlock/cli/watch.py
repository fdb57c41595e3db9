"""`celery rlock watch`: the locks, again and again, as `top` shows processes."""

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

from celery_rlock.core.cluster import FAILURES
from celery_rlock.core.entry import Entry
from celery_rlock.ops import rows
from celery_rlock.ops.filters import Filter, filter_options
from celery_rlock.ops.ls import snapshot
from celery_rlock.ops.output import Output, Piece, styled
from celery_rlock.ops.session import LockCommand, Session, json_option
from celery_rlock.ops.wording import counted, moment

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_QUIT = "qQ\x03\x04"


@click.command(cls=LockCommand)
@filter_options
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between."
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many snapshots.")
@json_option("One JSON document for each snapshot, a line each.")
@click.pass_context
def watch(ctx: click.Context, /, *, interval: float, count: int | None, as_json: bool, **wanted: Any) -> None:
    """Watch the locks whose key matches PATTERN. The key q ends it, and so does Ctrl-C.

    Where there is no terminal it writes a plain snapshot each time, and --count ends it.
    """
    session, chosen = Session(ctx, as_json=as_json), Filter(**wanted)
    inventory = session.inventory

    def look() -> list[Entry]:
        return snapshot(inventory, chosen)

    entries = look()  # a server that cannot be reached now ends it, later it does not
    try:
        if session.output.console is not None and sys.stdin.isatty():
            _live(session.output.console, look, entries, interval, count)
        else:
            _plain(session.output, look, entries, interval, count)
    except KeyboardInterrupt:
        return


def _plain(
    output: Output, look: Callable[[], list[Entry]], entries: list[Entry], interval: float, count: int | None
) -> None:
    for number in itertools.count(1):
        if output.as_json:
            shown = [rows.as_json(entry) for entry in entries]
            output.document({"at": round(time.time(), 3), "locks": shown})
        else:
            output.row(f"# {moment(time.time())}  {summary(entries)}")
            for entry in entries:
                output.row(*rows.cells(entry))
        if number == count:
            return
        time.sleep(interval)
        entries = look()


def _live(
    console: Console,
    look: Callable[[], list[Entry]],
    entries: list[Entry],
    interval: float,
    count: int | None,
) -> None:
    from rich.live import Live  # noqa: PLC0415 - an extra

    trouble = ""
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        for number in itertools.count(1):
            live.update(_page(console, entries, trouble), refresh=True)
            if number == count or pressed(interval):
                return
            try:
                entries, trouble = look(), ""
            except FAILURES as error:  # what was seen last stays, and says that it is old
                trouble = f"no answer since {moment(time.time())}: {error}"


def _page(console: Console, entries: list[Entry], trouble: str) -> RenderableType:
    """As much as fits on the screen."""
    from rich.console import Group  # noqa: PLC0415 - an extra

    top: list[Piece] = [
        ("celery rlock", "bold"),
        f"  {moment(time.time())}  {summary(entries)}  ",
        ("q quits", "dim"),
    ]
    lines: list[list[Piece]] = [top, [(trouble, "red")]] if trouble else [top]
    room = console.height - 2 * len(lines) - 1
    if console.width >= rows.TABLE_WIDTH:
        return Group(*(styled(*line) for line in lines), rows.table(entries[:room]))
    blocks = [line for entry in entries[: max(1, room // 3)] for line in rows.lines(entry)]
    return Group(*(styled(*line) for line in [*lines, *blocks]))


def summary(entries: list[Entry]) -> str:
    states = Counter(entry.state for entry in entries)
    kinds = ", ".join(f"{states[state]} {state}" for state in ("held", "queued", "resting") if states[state])
    return f"{kinds or 'no locks'}, {counted(sum(entry.waiters for entry in entries), 'waiter')}"


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Inside, keys come at once and unseen: a function that waits so long for one that quits."""
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
