"""The timelines as an SVG picture in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from examples.demo.app import RUN_SECONDS, TICK_SECONDS
from examples.demo.fleet import WORKERS
from examples.demo.measuring import Outcome, Run

WIDTH, LEFT, RIGHT = 960, 120, 32
ROW, BAR = 34, 22
HEADER, PANEL_TITLE, AXIS, LEGEND = 88, 58, 44, 40
PANEL = PANEL_TITLE + ROW * len(WORKERS) + AXIS
AXIS_STEP = 2
SUBTITLE = (
    f"Every {TICK_SECONDS:g} s each beat publishes the same periodic task; one run takes {RUN_SECONDS:g} s. "
    "kill -9 ends a worker in the middle of a run."
)

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #334155 }
.headline { font-size: 20px; font-weight: 600; fill: #0f172a }
.title { font-size: 15px; font-weight: 600; fill: #0f172a }
.small { font-size: 12px; fill: #64748b }
.good { fill: #15803d; font-weight: 600 }
.bad { fill: #b91c1c; font-weight: 600 }
.lane { fill: #f1f5f9 }
.grid { stroke: #cbd5e1; stroke-width: 1 }
.run { fill: #34a26f; stroke: #ffffff }
.overlap { fill: #dc2626 }
.lease { fill: url(#hatch) }
.kill { stroke: #7e22ce; stroke-width: 3.5; stroke-linecap: round }
.published { fill: #0284c7 }
"""


def write_picture(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw all rounds, one above the other on the same scale, with a legend."""
    height = HEADER + PANEL * len(outcomes) + LEGEND
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", role="img")
    svg.set("width", str(WIDTH))
    svg.set("height", str(height))
    _add(svg, "title", "celery-rlock: a periodic task without the lock and with LockedTask")
    _add(svg, "style", STYLE)
    _hatch(svg)
    _add(svg, "rect", width=WIDTH, height=height, rx=12, fill="#ffffff", stroke="#e2e8f0")
    _add(svg, "text", "Two beats, three workers, one of them killed", x=24, y=40, class_="headline")
    _add(svg, "text", SUBTITLE, x=24, y=62, class_="small")
    per_second = (WIDTH - LEFT - RIGHT) / max(outcome.duration for outcome in outcomes)
    for number, outcome in enumerate(outcomes):
        panel = _add(svg, "g", transform=f"translate(0 {HEADER + PANEL * number})")
        _Panel(panel, outcome, per_second).draw()
    _legend(_add(svg, "g", transform=f"translate(0 {height - LEGEND})"))
    ET.indent(svg)
    ET.ElementTree(svg).write(path, encoding="utf-8", xml_declaration=True)


class _Panel:
    """One round."""

    def __init__(self, parent: ET.Element, outcome: Outcome, per_second: float) -> None:
        self._parent, self._outcome, self._per_second = parent, outcome, per_second

    def draw(self) -> None:
        self._title()
        self._axis()
        for worker in WORKERS:
            self._lane(worker)
        for run in self._outcome.runs:
            self._run(run)
        self._kill()
        for publication in self._outcome.publications:
            _triangle(self._parent, self._x(publication.at), PANEL_TITLE - 14)

    def _x(self, moment: float) -> float:
        return LEFT + (moment - self._outcome.begin) * self._per_second

    def _title(self) -> None:
        outcome = self._outcome
        _add(self._parent, "text", outcome.round.title, x=24, y=20, class_="title")
        failures = len(outcome.overlaps) + len(outcome.lost)
        figures = (
            f"{len(outcome.runs)} runs, {len(outcome.overlaps)} overlaps, {len(outcome.lost)} lost tasks"
        )
        colour = "bad" if failures else "good"
        _add(self._parent, "text", figures, x=WIDTH - RIGHT, y=20, text_anchor="end", class_=colour)
        _add(self._parent, "text", "published", x=24, y=PANEL_TITLE - 9, class_="small")

    def _axis(self) -> None:
        bottom = PANEL_TITLE + ROW * len(WORKERS)
        seconds = int((WIDTH - LEFT - RIGHT) / self._per_second)
        for second in range(0, seconds + 1, AXIS_STEP):
            x = LEFT + second * self._per_second
            _add(self._parent, "line", x1=x, x2=x, y1=PANEL_TITLE, y2=bottom + 4, class_="grid")
            _add(
                self._parent, "text", f"{second} s", x=x, y=bottom + 18, text_anchor="middle", class_="small"
            )

    def _lane(self, worker: str) -> None:
        y = _lane_y(worker)
        _add(self._parent, "text", worker, x=24, y=y + 16)
        _add(self._parent, "rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=BAR, rx=4, class_="lane")

    def _run(self, run: Run) -> None:
        self._bar(run.worker, run.start, self._outcome.end_of(run), "run")
        for start, end in self._outcome.overlaps:
            if run.start <= start and end <= self._outcome.end_of(run):
                self._bar(run.worker, start, end, "overlap")

    def _kill(self) -> None:
        kill = self._outcome.kill
        if kill is None:
            return
        if self._outcome.lease_left is not None:
            self._bar(kill.worker, *self._outcome.lease_left, "lease")
        _cross(self._parent, self._x(kill.at), _lane_y(kill.worker) + BAR / 2)

    def _bar(self, worker: str, start: float, end: float, kind: str) -> None:
        x, y = self._x(start), _lane_y(worker)
        width = self._x(end) - x
        _add(self._parent, "rect", x=x, y=y, width=width, height=BAR, rx=3, class_=kind)


def _lane_y(worker: str) -> int:
    return PANEL_TITLE + ROW * WORKERS.index(worker) + (ROW - BAR) // 2


def _legend(parent: ET.Element) -> None:
    bars = (
        ("run", "one run", LEFT),
        ("overlap", "two runs at once", 225),
        ("lease", "dead worker's lease", 385),
    )
    for kind, meaning, x in bars:
        _add(parent, "rect", x=x, y=4, width=24, height=14, rx=3, class_=kind)
        _add(parent, "text", meaning, x=x + 32, y=16)
    _cross(parent, 592, 11)
    _add(parent, "text", "kill -9 of a worker", x=610, y=16)
    _triangle(parent, 772, 6)
    _add(parent, "text", "task published", x=786, y=16)


def _cross(parent: ET.Element, x: float, y: float) -> None:
    _add(parent, "path", d=f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12", class_="kill")


def _triangle(parent: ET.Element, x: float, y: float) -> None:
    _add(parent, "path", d=f"M{x - 5:.1f} {y:.1f}h10l-5 9z", class_="published")


def _hatch(svg: ET.Element) -> None:
    pattern = _add(svg, "pattern", id="hatch", width=6, height=6, patternTransform="rotate(45)")
    pattern.set("patternUnits", "userSpaceOnUse")
    _add(pattern, "rect", width=6, height=6, fill="#fef3c7")
    _add(pattern, "rect", width=2, height=6, fill="#f59e0b")


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str | float) -> ET.Element:
    """Add a child element. `class_` becomes class, and other underscores become hyphens."""
    element = ET.SubElement(parent, tag)
    element.text = text
    for name, value in attributes.items():
        shown = f"{value:.1f}" if isinstance(value, float) else str(value)
        element.set(name.rstrip("_").replace("_", "-"), shown)
    return element
