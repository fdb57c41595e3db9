"""Prints what happens while it happens. On a terminal, a status line is below it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console


class Narrator:
    """A context manager that shows the status line, on a terminal only."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._status = console.status("starting …")

    def __enter__(self) -> Narrator:  # noqa: PYI034 - Self is not in Python 3.10
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def begin(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/]")

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._start:6.1f} s[/]  {text}")

    def status(self, text: str, running: Sequence[str]) -> None:
        """`running` are the workers that run the task now. More than one is an overlap."""
        colour = "red" if len(running) > 1 else "green"
        where = f"[{colour}]running on {' and '.join(running)}[/]" if running else "[dim]no run now[/]"
        self._status.update(f"{text}, {where}")
