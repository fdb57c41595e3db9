"""Draws replace.svg from a real run: five calls of a task with `lock_busy="replace"`, and two workers.

`python -m docs.img.replace`, in the root of the repository, takes about 20 seconds. It needs the packages
that `make demo` needs. The exit code is 1 when the run does not show what the picture is meant to show.
"""

# ruff: noqa: INP001 - docs is a folder of pages, not a package

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import redis
from celery import Celery
from rich.console import Console

from celery_rlock import LockedTask, TaskReplaced
from celery_rlock.signals import lock_replaced
from docs.img.periodic import STYLE
from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.story import run, wait_until
from examples.embedded.valkey import Valkey

PICTURE = Path(__file__).with_name("replace.svg")
RUN = 4.0  # seconds
#: When each call is published, in seconds. The second finds the first run; the others come in a burst.
CALLS = (0.0, 1.5, 3.2, 3.35, 3.5)
REPLACED_WHILE_RUNNING, REPLACED_WHILE_WAITING = 2, 2

app = Celery("replace", broker=os.environ.get("REDIS_URL"))


@app.task(base=LockedTask, bind=True, name="rebuild", lock_key="index", lock_busy="replace")
def rebuild(self: LockedTask) -> None:
    _record(event="start", task_id=self.request.id)
    try:
        time.sleep(RUN)
        _record(event="end", task_id=self.request.id)
    except TaskReplaced:
        time.sleep(0.15)  # clean up
        _record(event="ended", task_id=self.request.id)
        raise


@lock_replaced.connect
def _record_replaced(request: Any, held: float, **_: Any) -> None:
    _record(event="told", task_id=request.id, held=held)


def _record(**event: Any) -> None:
    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    client.rpush("events", json.dumps({"at": time.time(), **event}))


@dataclass(frozen=True)
class Call:
    """What became of one call."""

    published: float
    start: float | None
    end: float | None  #: of its run, or of its wait
    replaced: bool

    @property
    def kind(self) -> str:
        return "killed" if self.replaced else "run"


def draw_a_real_run(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    os.environ["REDIS_URL"] = valkey.url
    app.conf.broker_url = app.conf.rlock_url = valkey.url
    CeleryProcesses(processes, "docs.img.replace", {"REDIS_URL": valkey.url}).start_workers(
        ("worker-1", "worker-2"), "-c", "2"
    )
    begin = time.time()
    published: dict[str, float] = {}
    for moment in CALLS:
        time.sleep(max(0.0, begin + moment - time.time()))
        published[rebuild.delay().id] = time.time()
    last = list(published)[-1]
    wait_until(lambda: ("end", last) in _found(valkey), "the run of the last call", timeout=60)
    wait_until(lambda: _replaced(valkey) == len(CALLS) - 1, "the other calls", timeout=60)
    found = _found(valkey)
    calls = [
        Call(
            at,
            found.get(("start", one)),
            found.get(("end", one)) or found.get(("ended", one)) or found.get(("told", one)),
            ("end", one) not in found,
        )
        for one, at in published.items()
    ]
    _write(calls)
    console.print(_summary(calls))
    runs = [call.kind for call in calls if call.start]
    return not _overlaps(calls) and runs == ["killed"] * REPLACED_WHILE_RUNNING + ["run"]


def _found(valkey: Valkey) -> dict[tuple[str, str], float]:
    events = [json.loads(line) for line in valkey.client.lrange("events", 0, -1)]
    return {(event["event"], event["task_id"]): event["at"] for event in events}


def _replaced(valkey: Valkey) -> int:
    return sum(event == "told" for event, _ in _found(valkey))


def _summary(calls: list[Call]) -> str:
    running = sum(call.replaced and call.start is not None for call in calls)
    waiting = sum(call.replaced and call.start is None for call in calls)
    completed = sum(not call.replaced for call in calls)
    return (
        f"{len(calls)} calls: {running} replaced while they ran, {waiting} while they waited, "
        f"{completed} completed, {_overlaps(calls)} overlaps"
    )


def _overlaps(calls: list[Call]) -> int:
    runs = sorted((call.start, call.end or call.start) for call in calls if call.start)
    return sum(later[0] < earlier[1] for earlier, later in pairwise(runs))


WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 960, 110, 24, 86, 34, 22
HEIGHT = TOP + ROW * len(CALLS) + 56


def _write(calls: list[Call]) -> None:
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    svg.set("width", str(WIDTH))
    svg.set("height", str(HEIGHT))
    _add(svg, "title", f'lock_busy="replace". {_summary(calls)}')
    _add(svg, "style", STYLE)
    _add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=12, class_="card")
    _add(svg, "text", "The newest call ends the older ones, and runs alone", x=24, y=36, class_="headline")
    _add(svg, "text", _summary(calls), x=24, y=60, class_="good")
    zero = calls[0].published - 0.2
    per_second = (WIDTH - LEFT - RIGHT) / (max(call.end or 0 for call in calls) + 0.3 - zero)

    def x(moment: float) -> float:
        return LEFT + (moment - zero) * per_second

    for number, call in enumerate(calls):
        y = TOP + ROW * number
        end = call.end or call.published
        _add(svg, "text", f"call {number + 1}", x=24, y=y + 16)
        _add(svg, "rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=BAR, rx=4, class_="lane")
        waited = x(call.start or end) - x(call.published)
        _add(svg, "rect", x=x(call.published), y=y + 4, width=waited, height=BAR - 8, rx=3, class_="lease")
        if call.start:
            width = x(end) - x(call.start)
            _add(svg, "rect", x=x(call.start), y=y, width=width, height=BAR, rx=3, class_=call.kind)
        _add(svg, "path", d=f"M{x(call.published) - 6:.1f} {y + 5}h12l-6 11z", class_="ran")
    _legend(svg)
    ET.indent(svg)
    ET.ElementTree(svg).write(PICTURE, encoding="utf-8", xml_declaration=True)


def _legend(svg: ET.Element) -> None:
    y = HEIGHT - 20
    _add(svg, "path", d=f"M{LEFT - 6} {y - 10}h12l-6 11z", class_="ran")
    _add(svg, "text", "published", x=LEFT + 14, y=y)
    for x, kind, meaning in (
        (220, "lease", "waits for the lock"),
        (400, "killed", "runs, and is replaced: REVOKED"),
        (660, "run", f"a run of {RUN:g} s to its end"),
    ):
        _add(svg, "rect", x=x, y=y - 12, width=24, height=14, rx=3, class_=kind)
        _add(svg, "text", meaning, x=x + 32, y=y)


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str | float) -> None:
    """A new child; `class_` stands for class."""
    element = ET.SubElement(parent, tag)
    element.text = text
    for name, value in attributes.items():
        element.set(name.rstrip("_"), f"{value:.1f}" if isinstance(value, float) else str(value))


if __name__ == "__main__":
    sys.exit(run(draw_a_real_run, "calls that replace each other …"))
