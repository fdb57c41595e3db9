"""What a check finds, what the user can do about it, and the report of all findings."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from celery_rlock.doctor.output import Output, counted, styled

if TYPE_CHECKING:  # rich is an extra
    from rich.table import Table

Level = Literal["ok", "warn", "error", "skip"]

_MARKS: dict[Level, str] = {"ok": "✓", "warn": "!", "error": "✗", "skip": "-"}
_ASCII_MARKS: dict[Level, str] = {"ok": "ok", "warn": "!", "error": "x", "skip": "-"}
_COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "error": "red", "skip": "dim"}

#: `named` lists this many names before it counts the others.
_SHOWN = 3


class Finding(NamedTuple):
    """One result of a check. A warning or an error has a `todo`."""

    level: Level
    what: str
    todo: str = ""
    at_start: bool = True  #: whether a worker logs it when it starts


class NotChecked(Exception):
    """Raised by a check that has nothing to check in this setup; the text says why."""


class CouldNotLook(Exception):
    """Raised by a check that could not look, so that it does not know; the text says why.

    It becomes a warning: a check that did not look must not pass. A worker that starts does not log it.
    """

    def __init__(self, why: str, todo: str) -> None:
        super().__init__(why)
        self.todo = todo

    @property
    def finding(self) -> Finding:
        return warn(f"not checked: {self}", self.todo, at_start=False)


def ok(what: str) -> Finding:
    return Finding("ok", what)


def warn(what: str, todo: str, *, at_start: bool = True) -> Finding:
    return Finding("warn", what, todo, at_start)


def not_checked(why: object) -> Finding:
    return Finding("skip", f"not checked: {why}")


def error(what: str, todo: str) -> Finding:
    return Finding("error", what, todo)


def named(names: Iterable[str]) -> str:
    """`a, b, c and 4 more`."""
    ordered = sorted(set(names))
    rest = len(ordered) - _SHOWN
    shown = ", ".join(ordered[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown


def located(findings: Iterable[Finding], where: str) -> Iterator[Finding]:
    """The same findings, each with the server it is about."""
    for finding in findings:
        yield finding._replace(what=f"{where}: {finding.what}")


class Report:
    """The findings of all checks, as pairs of a check's name and a finding."""

    def __init__(self, lines: list[tuple[str, Finding]]) -> None:
        self._lines = lines
        self._counts = Counter(finding.level for _, finding in lines)

    @property
    def errors(self) -> int:
        return self._counts["error"]

    @property
    def warnings(self) -> int:
        return self._counts["warn"]

    def has_error_in(self, *checks: str) -> bool:
        return any(finding.level == "error" for check, finding in self._lines if check in checks)

    def as_json(self) -> dict[str, Any]:
        findings = [
            {"check": check, "level": finding.level, "what": finding.what, "todo": finding.todo}
            for check, finding in self._lines
        ]
        counts = {"errors": self.errors, "warnings": self.warnings}
        return {"ok": not self.errors, **counts, "findings": findings}

    @property
    def summary(self) -> str:
        if not self.errors and not self.warnings:
            return "all is well"
        return f"{counted(self.errors, 'error')}, {counted(self.warnings, 'warning')}"

    def write(self, output: Output) -> None:
        """Write one JSON document, a table on a terminal, or plain lines."""
        if output.as_json:
            output.document(self.as_json(), indent=2)
            return
        if output.console is not None:
            output.console.print(self._table())
        else:
            self._write_lines(output)
        output.line("")
        output.line(self.summary)

    def _write_lines(self, output: Output) -> None:
        marks = _marks(sys.stdout.encoding or "ascii")
        for check, (level, what, todo, _) in self._lines:
            output.line(f"{marks[level]:<2} {check:<12} {what}")
            if todo:
                output.line(f"   {'':<12} to do: {todo}")

    def _table(self) -> Table:
        from rich.table import Table  # noqa: PLC0415 - an extra

        grid = Table.grid(padding=(0, 1))
        for check, (level, what, todo, _) in self._lines:
            text = styled((what, "dim" if level == "skip" else ""))
            if todo:
                text.append("\n").append_text(styled((f"to do: {todo}", "bold")))
            grid.add_row(styled((_MARKS[level], _COLOURS[level])), check, text)
        return grid


def _marks(encoding: str) -> dict[Level, str]:
    try:
        "".join(_MARKS.values()).encode(encoding)
    except UnicodeEncodeError:
        return _ASCII_MARKS
    return _MARKS
