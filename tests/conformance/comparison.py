"""The table of docs/conformance.md: a row for each shape, a column for each broker and package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.table import Table

#: The columns: the name of a fleet or run, and its title.
COLUMNS = {
    "redis": "Redis",
    "classic": "RabbitMQ, classic",
    "direct": "quorum, direct",
    "topic": "quorum, topic",
    "sentry": "Sentry",
    "otel": "OpenTelemetry",
    "django": "django-celery-results",
}


@dataclass
class ShapeRow:
    shape: str
    results: dict[str, str] = field(default_factory=dict)

    def cells(self) -> Sequence[str]:
        return (self.shape.replace("_", " "), *(self.results.get(column, "") for column in COLUMNS))


class ConformanceTable(Table):
    def add(self, shape: str, column: str, compared: int, differing: Sequence[str]) -> None:
        rows: list[ShapeRow] = self.rows  # type: ignore[assignment]
        row = next((row for row in rows if row.shape == shape), None)
        if row is None:
            row = ShapeRow(shape)
            rows.append(row)
        row.results[column] = f"{len(differing)} of {compared} differ" if differing else f"{compared} same"


CONFORMANCE = ConformanceTable(
    "conformance", "conformance", "CELERY_RLOCK_CONFORMANCE_TABLE", ("task", *COLUMNS.values())
)
