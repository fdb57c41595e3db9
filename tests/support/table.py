"""A table of what tests measured, written to the end of a page in docs/."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import celery
import kombu


class Row(Protocol):
    def cells(self) -> Sequence[str]: ...


@dataclass
class Table:
    """`make <target>` sets the environment variable `variable` to the page that the table belongs to."""

    name: str
    target: str
    variable: str
    titles: Sequence[str]
    rows: list[Row] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [self.titles, ("---",) * len(self.titles), *(row.cells() for row in self.rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n\n" + _where()

    def write(self, page: Path) -> None:
        """Replace the page's table by this one; the text before it stays."""
        begin = f"<!-- measured: make {self.target} writes everything below -->"
        before = page.read_text().partition(begin)[0] if page.exists() else ""
        page.write_text(f"{before}{begin}\n\n{self.markdown()}")

    def tell(self, terminalreporter: Any) -> None:
        """Print the table, and write it to the page that `variable` names; with xdist only a part of it."""
        if not self.rows:
            return
        terminalreporter.section(self.name)
        terminalreporter.write_line(self.markdown())
        if path := os.environ.get(self.variable):
            self.write(Path(path))


def _where() -> str:
    return (
        f"Python {platform.python_version()}, Celery {celery.__version__}, kombu {kombu.__version__}, "
        f"{os.cpu_count()} cores, everything on one machine.\n"
    )
