"""A row of the table of endings: what the tests of crashes measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

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
