"""A violation as text and as a picture: who relied on the key around it, and what the nemesis did."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plot import MARGIN, WIDTH, add, picture, save
from tests.nemesis.checkers import History, Verdict
from tests.nemesis.history import Event, Ownership

ROW, NAMES = 26, 250
_NOT_SHOWN = {"at", "what", "pid", "who", "limit", "key", "number", "kind", "parent", "deadline"}
#: How much is shown before and after the violation, in leases.
AROUND = 1.5
MOST_ROWS, MOST_LINES = 30, 24


def excerpt(history: History, violation: Verdict) -> list[str]:
    """The events around the violation, without looks that only repeat the last one."""
    begin, end = _window(history, violation)
    if violation.key is None:
        return []
    lines: list[tuple[float, str]] = []
    last: dict[str, str] = {}
    for event in history.events:
        if not begin <= event["at"] <= end or not _concerns(event, violation.key):
            continue
        who = event.get("who", "nemesis")
        if event["what"] == "held" and last.get(who) == "held":
            continue
        last[who] = event["what"]
        said = " ".join(f"{name}={event[name]}" for name in event if name not in _NOT_SHOWN and event[name])
        inside = violation.begin <= event["at"] <= violation.end
        mark, after = ">" if inside else " ", event["at"] - violation.begin
        line = f"{mark} {after:+8.3f} s  {who}  {event['what']}  {said}"
        lines.append((abs(event["at"] - violation.begin), line))
    nearest = sorted(distance for distance, _ in lines)[:MOST_LINES]
    return [line for distance, line in lines if distance <= nearest[-1]]


def _concerns(event: Event, key: str | None) -> bool:
    if event["what"] in {"pulse", "published", "failed", "interrupted", "unavailable"}:
        return False
    return "key" not in event or key is None or event["key"] == key


def _window(history: History, violation: Verdict) -> tuple[float, float]:
    around = AROUND * history.ttl
    return violation.begin - around, min(violation.end, violation.begin + 4 * around) + around


def draw(history: History, violation: Verdict, path: Path) -> Path:
    """Write the picture, and return its path."""
    begin, end = _window(history, violation)
    owned = [
        one
        for one in history.owned
        if violation.key in {None, one.key} and one.start <= end and one.end >= begin
    ]
    rows = sorted({one.who for one in owned}, key=lambda who: min(o.start for o in owned if o.who == who))
    rows = rows[:MOST_ROWS]
    faults = [one for one in history.faults if one.begin <= end and one.end >= begin]
    height = ROW * (len(rows) + len(faults)) + 60
    svg, top = picture(f"{violation.check}: {violation.key or 'all keys'}", [], height)
    scale = (WIDTH - NAMES - MARGIN) / (end - begin)

    def x(at: float) -> float:
        return NAMES + (min(max(at, begin), end) - begin) * scale

    bottom = top + ROW * (len(rows) + len(faults))
    width = max(2.0, x(violation.end) - x(violation.begin))
    add(svg, "rect", x=x(violation.begin), y=top - 6, width=width, height=bottom - top + 6, class_="fill1")
    for number, fault in enumerate(faults):
        y = float(top + ROW * number)
        add(svg, "text", fault.name, x=NAMES - 10, y=y + 14, class_="end")
        add(
            svg,
            "rect",
            x=x(fault.begin),
            y=y,
            width=max(2.0, x(fault.end) - x(fault.begin)),
            height=16,
            class_="fill4",
        )
    for number, who in enumerate(rows, len(faults)):
        y = float(top + ROW * number)
        add(svg, "text", who[:34], x=NAMES - 10, y=y + 14, class_="end")
        for one in (one for one in owned if one.who == who):
            _bar(svg, one, x, y)
    for seconds in range(int(end - begin) + 1):
        at = x(begin + seconds)
        add(
            svg,
            "text",
            f"{begin + seconds - violation.begin:+.1f} s",
            x=at,
            y=bottom + 20,
            class_="small middle",
        )
    save(svg, path)
    return path


def _bar(svg, one: Ownership, x, y: float) -> None:
    """Solid while the holder relied on the lock, thin until it left."""
    left = max(one.end, one.left or one.told or one.end)
    add(
        svg, "rect", x=x(one.start), y=y + 6, width=max(1.0, x(left) - x(one.start)), height=4, class_="fill2"
    )
    bar = add(
        svg, "rect", x=x(one.start), y=y, width=max(1.0, x(one.end) - x(one.start)), height=16, class_="fill0"
    )
    add(bar, "title", str(one))
