"""What all commands share: how they write to terminals, pipes and programs, and their exit codes."""

from __future__ import annotations

import json
import os
import sys
import time
from enum import IntEnum
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from celery_rlock.log import printable

if TYPE_CHECKING:  # rich is an extra
    from rich.console import Console
    from rich.text import Text

_MINUTE, _HOUR, _DAY = 60, 3600, 86400

#: A piece of a line: a text, or a text and its style.
Piece = str | tuple[str, str]


class ExitCode(IntEnum):
    """How a command ends; docs/cli.md explains each code."""

    FINE = 0
    PROBLEM = 1
    USAGE = 2
    UNREACHABLE = 3


class Output:
    """Writes with colours on a terminal that has rich, otherwise plain text, and JSON on demand.

    Every text is escaped first, so the name of a key or a task cannot control the terminal.
    """

    def __init__(self, *, as_json: bool = False, no_color: bool = False) -> None:
        self.as_json = as_json
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack a character
        self.is_terminal = sys.stdout.isatty()
        self.console = _console(no_color) if self.is_terminal and not as_json else None

    @property
    def width(self) -> int:
        return self.console.width if self.console is not None else 80

    def line(self, *pieces: Piece) -> None:
        if self.console is not None:
            self.console.print(styled(*pieces), soft_wrap=False, overflow="fold")
        else:
            click.echo("".join(_text_of(piece) for piece in pieces))

    def row(self, *cells: str) -> None:
        """Write one row for other programs, with tabs between the cells."""
        click.echo("\t".join(map(printable, cells)))

    def document(self, document: Any, indent: int | None = None) -> None:
        """Write one JSON document, on one line unless it is indented."""
        click.echo(json.dumps(document, indent=indent))

    @staticmethod
    def problem(*texts: str) -> None:
        """Write to stderr, so that a pipe receives nothing but results."""
        for text in texts:
            click.echo(printable(text), err=True)


def styled(*pieces: Piece) -> Text:
    """The pieces as one text of rich."""
    from rich.text import Text  # noqa: PLC0415 - an extra

    parts = [(_text_of(piece), "" if isinstance(piece, str) else piece[1]) for piece in pieces]
    return Text.assemble(*parts, overflow="fold")


def duration(seconds: float) -> str:
    """`0.4s`, `12s`, `4m12s`, `3h05m`, `2d04h`."""
    if seconds < 10:  # noqa: PLR2004 - tenths matter only below ten seconds
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def moment(seconds: float) -> str:
    """Date and time in the local time zone; `?` for a number that is no time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, TypeError, ValueError, OSError):
        return "?"


def counted(number: int, thing: str) -> str:
    """`1 waiter`, `2 waiters`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _text_of(piece: Piece) -> str:
    return printable(piece if isinstance(piece, str) else piece[0])


def _console(no_color: bool) -> Console | None:
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    if os.environ.get("TERM") == "dumb":
        return None
    return Console(no_color=no_color or None, highlight=False, markup=False, emoji=False)
