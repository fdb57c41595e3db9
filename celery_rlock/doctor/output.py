"""Where commands write: rich on a terminal, plain text elsewhere, JSON on demand."""

from __future__ import annotations

import json
import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from celery_rlock.ops.wording import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: A piece of a line: its text, or its text and how it looks where there is colour.
Piece = str | tuple[str, str]


class Output:
    """Every text goes through here, so that none of it is obeyed by a terminal or read as markup."""

    def __init__(self, *, as_json: bool = False, no_color: bool = False) -> None:
        self.as_json = as_json
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # what this terminal cannot write
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
        """A row for other programs: cells between tabs."""
        click.echo("\t".join(map(printable, cells)))

    def document(self, document: Any) -> None:
        """One JSON document on a line of its own."""
        click.echo(json.dumps(document))

    @staticmethod
    def problem(*texts: str) -> None:
        """Said on stderr, so that it never gets into what is piped on."""
        for text in texts:
            click.echo(printable(text), err=True)


def styled(*pieces: Piece) -> Text:
    from rich.text import Text  # noqa: PLC0415 - an extra

    parts = [(_text_of(piece), "" if isinstance(piece, str) else piece[1]) for piece in pieces]
    return Text.assemble(*parts, overflow="fold")


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
