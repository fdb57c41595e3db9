"""What a fault of the lock server costs a fleet under load: the table in docs/deployments.md."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.load import Report
from tests.support.table import Table

COSTS = Table(
    "what a fault costs",
    "topologies",
    "CELERY_RLOCK_TOPOLOGIES_TABLE",
    ("topology", "what happens to it", "tasks", "overlaps", "lost tasks", "longest pause of a key, s"),
)


@dataclass
class CostRow:
    topology: str
    fault: str
    report: Report

    def cells(self) -> tuple[str, ...]:
        report = self.report
        counts = map(str, (report.published, report.overlaps, report.lost))
        return (self.topology, self.fault, *counts, f"{report.longest_pause:.1f}")
