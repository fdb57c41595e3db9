"""Plots as SVG files: stacked bars, and panels with lines. They are readable in light and in dark mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

WIDTH, MARGIN = 960, 24
BAR, ROW, NAMES, TOTALS = 20, 32, 250, 150
HEIGHT, LEFT, BELOW, ABOVE = 270, 62, 46, 46  # of one panel
LEGEND = 20
#: One colour for each series, in light and in dark mode. They differ in lightness too.
COLOURS = (
    ("#0f766e", "#2dd4bf"),
    ("#c2410c", "#fb923c"),
    ("#1d4ed8", "#93c5fd"),
    ("#a21caf", "#e879f9"),
    ("#525252", "#d4d4d4"),
)
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #334155 }
.headline { font-size: 18px; font-weight: 600; fill: #0f172a }
.small { font-size: 12px; fill: #52607a }
.card { fill: #ffffff; stroke: #d6dde7 }
.grid { stroke: #d6dde7 }
.end { text-anchor: end }
.middle { text-anchor: middle }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #cbd5e1 }
  .headline { fill: #f1f5f9 }
  .small { fill: #a3b1c6 }
  .card { fill: #0f172a; stroke: #334155 }
  .grid { stroke: #334155 }
}
"""


@dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes. A logarithmic axis shows powers of ten."""

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str
    log_x: bool = True
    log_y: bool = False


def draw_bars(
    path: Path | None, headline: str, unit: str, rows: Mapping[str, Mapping[str, float]], notes: Sequence[str]
) -> None:
    """A stacked bar for each row, its total with a note behind it. Parts below zero are left out."""
    parts = list(next(iter(rows.values())))
    svg, top = picture(headline, parts, ROW * len(rows) + 40)
    longest = max(sum(max(0, value) for value in row.values()) for row in rows.values())
    scale = (WIDTH - NAMES - TOTALS) / longest
    for number, ((name, row), note) in enumerate(zip(rows.items(), notes, strict=True)):
        x, y = float(NAMES), top + ROW * number
        add(svg, "text", name, x=NAMES - 10, y=y + 15, class_="end")
        for part, value in row.items():
            width = max(0.0, value) * scale
            add(svg, "rect", x=x, y=y, width=width, height=BAR, class_=f"fill{parts.index(part)}")
            x += width
        add(svg, "text", note, x=x + 8, y=y + 15)
    add(svg, "text", unit, x=NAMES, y=top + ROW * len(rows) + 16, class_="small")
    save(svg, path)


def draw_panels(path: Path | None, headline: str, panels: Sequence[Panel]) -> None:
    """Panels in one column or two. Each has its own legend, unless there is only one panel."""
    columns = min(2, len(panels))
    legend = list(panels[0].series) if columns == 1 else []
    height = HEIGHT + (LEGEND * max(len(panel.series) for panel in panels) if columns > 1 else 0)
    svg, top = picture(headline, legend, height * -(-len(panels) // columns) + MARGIN // 2)
    width = (WIDTH - 2 * MARGIN) / columns
    for number, panel in enumerate(panels):
        line, column = divmod(number, columns)
        x, y = MARGIN + column * width, top + line * height
        _Axes(svg, panel, x, y, width).draw()
        if not legend:
            for place, name in enumerate(panel.series):
                _legend(svg, x + LEFT, y + HEIGHT + LEGEND * place, place, name)
    save(svg, path)


class _Axes:
    def __init__(self, svg: ET.Element, panel: Panel, x: float, y: float, width: float) -> None:
        self._svg, self._panel = svg, panel
        points = [point for series in panel.series.values() for point in series]
        self._x = _Scale([p[0] for p in points], x + LEFT, x + width - 20, is_log=panel.log_x)
        self._y = _Scale([p[1] for p in points], y + HEIGHT - BELOW, y + ABOVE, is_log=panel.log_y, zero=True)

    def draw(self) -> None:
        left, right, bottom, top = self._x.begin, self._x.end, self._y.begin, self._y.end
        add(self._svg, "text", self._panel.title, x=left, y=top - 24)
        add(self._svg, "text", self._panel.y, x=left, y=top - 8, class_="small")
        for tick in self._y.ticks():
            y = self._y.at(tick)
            add(self._svg, "line", x1=left, x2=right, y1=y, y2=y, class_="grid")
            add(self._svg, "text", _short(tick), x=left - 6, y=y + 4, class_="small end")
        for tick in self._x.ticks():
            x = self._x.at(tick)
            add(self._svg, "line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="grid")
            add(self._svg, "text", _short(tick), x=x, y=bottom + 18, class_="small middle")
        add(self._svg, "text", self._panel.x, x=right, y=bottom + 34, class_="small end")
        for colour, series in enumerate(self._panel.series.values()):
            points = [(self._x.at(x), self._y.at(y)) for x, y in series]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            add(self._svg, "polyline", points=path, class_=f"line stroke{colour}")
            if len(points) <= 12:
                for x, y in points:
                    add(self._svg, "circle", cx=x, cy=y, r=3.5, class_=f"fill{colour}")


class _Scale:
    """Maps values to pixels, linearly or by their logarithm."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, *, is_log: bool, zero: bool = False
    ) -> None:
        self.begin, self.end, self._is_log = begin, end, is_log
        low, high = min(values), max(values)
        if is_log:
            self._low, self._high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            self._high = max(self._high, self._low * 10)
        else:
            step = _step(high - (0 if zero else low) or 1)
            self._low = 0 if zero else math.floor(low / step) * step
            self._high = math.ceil(high / step) * step or step

    def at(self, value: float) -> float:
        value, low, high = map(self._along, (value, self._low, self._high))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self._is_log:
            powers = round(math.log10(self._high / self._low))
            return [self._low * 10**power for power in range(powers + 1)]
        step = _step(self._high - self._low)
        return [self._low + step * number for number in range(round((self._high - self._low) / step) + 1)]

    def _along(self, value: float) -> float:
        return math.log10(max(value, self._low)) if self._is_log else value


def _step(span: float) -> float:
    """A round number of which a few cover the span."""
    power = 10 ** math.floor(math.log10(span))
    return next(factor * power for factor in (0.2, 0.5, 1, 2) if span <= 5 * factor * power)


def _short(number: float) -> str:
    return f"{number / 1000:g}k" if number >= 1000 else f"{number:g}"


def picture(headline: str, legend: Sequence[str], height: int) -> tuple[ET.Element, int]:
    """A card with a headline and a legend, and where the plot begins."""
    top = 92 if legend else 64
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {top + height}")
    svg.attrib.update(role="img", width=str(WIDTH), height=str(top + height))
    add(svg, "title", headline)
    add(svg, "style", _style())
    add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=top + height - 1, rx=12, class_="card")
    add(svg, "text", headline, x=MARGIN, y=36, class_="headline")
    x = float(MARGIN)
    for number, name in enumerate(legend):
        _legend(svg, x, 54, number, name)
        x += 44 + 7 * len(name)
    return svg, top


def _legend(svg: ET.Element, x: float, y: float, colour: int, name: str) -> None:
    add(svg, "rect", x=x, y=y, width=14, height=14, rx=3, class_=f"fill{colour}")
    add(svg, "text", name, x=x + 20, y=y + 12)


def _style() -> str:
    light, media, dark = STYLE.rstrip().removesuffix("}").partition("@media")
    for number, (by_day, by_night) in enumerate(COLOURS):
        light += f".fill{number} {{ fill: {by_day} }}\n.stroke{number} {{ stroke: {by_day} }}\n"
        dark += f"  .fill{number} {{ fill: {by_night} }}\n  .stroke{number} {{ stroke: {by_night} }}\n"
    return f"{light}{media}{dark}}}\n"


def add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str | float) -> ET.Element:
    """A new child; `class_` stands for class."""
    element = ET.SubElement(parent, tag)
    element.text = text
    for name, value in attributes.items():
        element.set(name.rstrip("_"), f"{value:.1f}" if isinstance(value, float) else str(value))
    return element


def save(svg: ET.Element, path: Path | None) -> None:
    if path is not None:
        ET.indent(svg)
        ET.ElementTree(svg).write(path, encoding="utf-8")
