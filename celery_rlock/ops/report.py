"""What the checks found, for people and for programs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, NamedTuple

import click

from celery_rlock.checks.finding import Finding, Level

_MARKS: dict[Level, str] = {"ok": "✓", "warn": "!", "error": "✗", "skip": "-"}
_PLAIN_MARKS: dict[Level, str] = {"ok": "ok", "warn": "!", "error": "x", "skip": "-"}
_COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "error": "red", "skip": "dim"}


class Line(NamedTuple):
    check: str
    finding: Finding


class Report:
    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines
        self._counts = Counter(line.finding.level for line in lines)

    @property
    def errors(self) -> int:
        return self._counts["error"]

    @property
    def warnings(self) -> int:
        return self._counts["warn"]

    def has_error_in(self, *checks: str) -> bool:
        return any(line.finding.level == "error" for line in self._lines if line.check in checks)

    def as_json(self) -> str:
        findings = [{"check": line.check, **line.finding._asdict()} for line in self._lines]
        counts = {"errors": self.errors, "warnings": self.warnings}
        return json.dumps({"ok": not self.errors, **counts, "findings": findings}, indent=2)

    def show(self) -> None:
        """With colours, and wrapped, on a terminal that has rich; else a line a finding."""
        console = _console() if sys.stdout.isatty() else None
        if console is None:
            self._show_plain(sys.stdout.encoding or "ascii")
        else:
            self._show_rich(console)

    @property
    def summary(self) -> str:
        if not self.errors and not self.warnings:
            return "all is well"
        return f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"

    def _show_plain(self, encoding: str) -> None:
        marks = _marks(encoding)
        lines = []
        for name, (level, what, todo) in self._lines:
            lines.append(f"{marks[level]:<2} {name:<12} {what}")
            if todo:
                lines.append(f"   {'':<12} to do: {todo}")
        text = "\n".join([*lines, "", self.summary])
        click.echo(text.encode(encoding, "replace").decode(encoding))

    def _show_rich(self, console: Any) -> None:
        from rich.table import Table  # noqa: PLC0415 - an extra
        from rich.text import Text  # noqa: PLC0415

        grid = Table.grid(padding=(0, 1))
        for name, (level, what, todo) in self._lines:
            text = Text(what, style="dim" if level == "skip" else "")
            if todo:
                text.append(f"\nto do: {todo}", style="bold")
            grid.add_row(Text(_MARKS[level], style=_COLOURS[level]), name, text)
        console.print(grid)
        console.print(Text(f"\n{self.summary}"))


def _console() -> Any:
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Console()


def _marks(encoding: str) -> dict[Level, str]:
    try:
        "".join(_MARKS.values()).encode(encoding)
    except UnicodeEncodeError:
        return _PLAIN_MARKS
    return _MARKS


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
