"""What the benchmarks share: medians with their spread, tables, and the pages in docs/ that show them."""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[1] / "docs" / "img"


def options(about: str, **defaults: float) -> argparse.Namespace:
    """The command line: an option for each of the defaults, and the pages that get the figures."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="Markdown files with the marks of this benchmark")
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    return parser.parse_args()


class Spread(NamedTuple):
    """The quartiles of repeated measurements: half of them are between `low` and `high`."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))

    def error(self, measurements: int) -> float:
        """How far the middle may be from that of endless measurements, in 95 of 100 cases (McGill 1978)."""
        return 1.57 * (self.high - self.low) / math.sqrt(measurements)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---:") -> str:
    """A Markdown table. The columns after the first are aligned to the right by default."""
    lines = [titles, ["---", *[align] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def surroundings(*packages: str) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("celery", "redis", "celery-rlock", *packages))
    return (
        f"Measured on {time.strftime('%Y-%m-%d')}: Python {platform.python_version()}, {versions}; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}."
    )


def publish(pages: Iterable[str], name: str, *parts: str) -> None:
    """Print the parts, and write them into each page that has the marks of `name`."""
    text = "\n\n".join(parts)
    print(text, flush=True)
    begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    for page in map(Path, pages):
        page.write_text(between.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page.read_text()))


def image(pages: Sequence[str], name: str) -> Path | None:
    """Where to draw a picture; None in a trial run, which writes to no page."""
    return IMAGES / name if pages else None
