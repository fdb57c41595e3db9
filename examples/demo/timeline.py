"""The timelines for the terminal: one row for each worker, time from left to right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.text import Text

from examples.demo.fleet import WORKERS
from examples.demo.measuring import Outcome, Run

LABEL = 11
AXIS_STEP = 5

START, RUN, OVERLAP, KILLED, LEASE = "▐", "█", "▒", "✗", "┄"
STYLES = {START: "green", RUN: "green", OVERLAP: "bold red", KILLED: "bold magenta", LEASE: "yellow"}
LEGEND = (
    (RUN, "run"),
    (OVERLAP, "two runs at once"),
    (KILLED, "kill -9"),
    (LEASE, "dead worker's lease"),
    ("2", "tasks published"),
)


def timelines(outcomes: Sequence[Outcome], width: int) -> Text:
    """All rounds on the same scale, and a legend. No line is longer than `width`."""
    scale = _Scale(width - LABEL, max(outcome.duration for outcome in outcomes))
    text = Text()
    for outcome in outcomes:
        text.append(f"{outcome.round.title}\n", "bold")
        text.append(f"{'published':<{LABEL}}{_publications(outcome, scale)}\n", "cyan")
        for worker in WORKERS:
            text.append(f"{worker:<{LABEL}}").append(_row(outcome, worker, scale)).append("\n")
        text.append(f"{'':<{LABEL}}{scale.axis()}\n\n", "dim")
    return text.append(_legend())


class _Scale:
    """Maps the seconds of a round to columns."""

    def __init__(self, columns: int, seconds: float) -> None:
        self.columns = columns
        self._seconds = seconds / columns

    def column(self, seconds: float) -> int:
        return min(self.columns - 1, int(seconds / self._seconds))

    def between(self, outcome: Outcome, start: float, end: float) -> range:
        return range(self.column(start - outcome.begin), self.column(end - outcome.begin) + 1)

    def axis(self) -> str:
        axis = ""
        for second in range(0, int(self.columns * self._seconds) + 1, AXIS_STEP):
            longer = f"{axis:<{self.column(second)}}╵{second} s"
            axis = longer if len(longer) <= self.columns else axis
        return axis


def _publications(outcome: Outcome, scale: _Scale) -> str:
    """The number of published tasks, in the column of their time."""
    counts = Counter(scale.column(publication.at - outcome.begin) for publication in outcome.publications)
    return "".join(str(counts[column] or " ") for column in range(scale.columns)).rstrip()


def _row(outcome: Outcome, worker: str, scale: _Scale) -> Text:
    cells = [" "] * scale.columns
    if outcome.lease_left and outcome.kill and outcome.kill.worker == worker:
        _fill(cells, LEASE, scale.between(outcome, *outcome.lease_left))
    for run in outcome.runs:
        if run.worker == worker:
            _draw_run(cells, run, outcome, scale)
    return _styled(cells)


def _draw_run(cells: list[str], run: Run, outcome: Outcome, scale: _Scale) -> None:
    columns = scale.between(outcome, run.start, outcome.end_of(run))
    _fill(cells, RUN, columns)
    for overlap in outcome.overlaps:
        _fill(cells, OVERLAP, set(columns).intersection(scale.between(outcome, *overlap)))
    first, last = columns[0], columns[-1]
    if first and cells[first - 1] in (RUN, OVERLAP):
        cells[first] = START
    if run.killed:
        cells[last] = KILLED


def _fill(cells: list[str], mark: str, columns: Iterable[int]) -> None:
    for column in columns:
        cells[column] = mark


def _styled(cells: Sequence[str]) -> Text:
    row = Text()
    for cell in "".join(cells).rstrip():
        row.append(cell, STYLES.get(cell, ""))
    return row


def _legend() -> Text:
    legend = Text()
    for mark, meaning in LEGEND:
        legend.append(mark, STYLES.get(mark, "cyan")).append(f" {meaning}  ")
    legend.rstrip()
    return legend
