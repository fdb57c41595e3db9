"""The table of endings: what the tests of crashes measured, as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import celery
import kombu

BEGIN = "<!-- measured: make faults writes everything below -->"
TITLES = (
    "how it ended",
    "pool",
    "broker",
    "lock free after, ms",
    "next holder running after, ms",
    "completed, times",
)


@dataclass
class Row:
    ending: str
    pool: str
    broker: str
    completed: int
    free_ms: list[float] = field(default_factory=list)
    running_ms: list[float] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        times = (_figure(self.free_ms), _figure(self.running_ms))
        return (self.ending, self.pool, self.broker, *times, str(self.completed))


def _figure(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.0f}"
    return f"p50 {statistics.median(values):.0f}, worst {max(values):.0f}"


def markdown(rows: list[Row]) -> str:
    lines = [TITLES, ("---",) * len(TITLES), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n\n" + _where()


def _where() -> str:
    return (
        f"Python {platform.python_version()}, Celery {celery.__version__}, kombu {kombu.__version__}, "
        f"{os.cpu_count()} cores, everything on one machine.\n"
    )


def write(rows: list[Row], path: Path) -> None:
    """Put the table in the place of the one at `path`; what stands before it stays."""
    before = path.read_text().partition(BEGIN)[0] if path.exists() else ""
    path.write_text(f"{before}{BEGIN}\n\n{markdown(rows)}")
