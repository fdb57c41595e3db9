"""What the fleet went through, as Markdown."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import celery
import kombu

from tests.fleet.load import Report

BEGIN = "<!-- measured: make fleet writes everything below -->"
TITLES = (
    "event",
    "broker",
    "published",
    "completed",
    "overlaps",
    "lost",
    "completed twice",
    "runs cut short",
    "longest gap, s",
)


def cells(report: Report) -> tuple[str, ...]:
    counts = (
        report.published,
        report.completed,
        report.overlaps,
        report.lost,
        report.ran_twice,
        report.cut_short,
    )
    return (report.event, report.broker, *map(str, counts), f"{report.gap:.1f}")


def markdown(reports: list[Report]) -> str:
    lines = [TITLES, ("---",) * len(TITLES), *map(cells, reports)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n" + _where()


def _where() -> str:
    return (
        f"Python {platform.python_version()}, Celery {celery.__version__}, kombu {kombu.__version__}, "
        f"{os.cpu_count()} cores, everything on one machine.\n"
    )


def write(reports: list[Report], path: Path) -> None:
    """Put the table in the place of the one at `path`; what stands before it stays."""
    before = path.read_text().partition(BEGIN)[0] if path.exists() else ""
    path.write_text(f"{before}{BEGIN}\n\n{markdown(reports)}")
