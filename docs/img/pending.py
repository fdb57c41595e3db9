"""Draws pending.svg and debounce.svg from real runs: calls, the pending one, runs, and what was superseded.

`python -m docs.img.pending`, in the root of the repository, takes about 20 seconds. It needs the packages
that `make demo` needs. The exit code is 1 when the runs do not show what the pictures are meant to show.
"""

# ruff: noqa: INP001 - docs is a folder of pages, not a package

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import redis
from celery import Celery
from rich.console import Console

from celery_rlock import LockedTask
from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.story import run, wait_until
from examples.embedded.valkey import Valkey

FOLDER = Path(__file__).parent
RUN, PAUSE = 2.0, 1.2  # seconds

app = Celery("pending", broker=os.environ.get("REDIS_URL"), backend=os.environ.get("REDIS_URL"))


@app.task(base=LockedTask, bind=True, name="rebuild", lock_key="i", lock_from="publish", lock_pending=1)
def rebuild(self: LockedTask) -> None:
    _work(self.request.id)


@app.task(
    base=LockedTask,
    bind=True,
    name="render",
    lock_key="d",
    lock_from="publish",
    lock_pending=1,
    lock_duplicate="replace",
)
def render(self: LockedTask, version: int) -> None:  # noqa: ARG001 - a task of a user has it
    _work(self.request.id)


def _work(task_id: str | None) -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as store:
        store.rpush("runs", json.dumps({"id": task_id, "start": time.time(), "end": time.time() + RUN}))
    time.sleep(RUN)


class Call(NamedTuple):
    """A call, and the id of the task whose result it got."""

    at: float
    task_id: str


@dataclass(frozen=True)
class Story:
    """What happened, in seconds after the first call."""

    calls: Sequence[Call]
    runs: dict[str, tuple[float, float]]

    def published(self) -> dict[str, float]:
        """When each task was published: at the first call that got its result."""
        return {call.task_id: call.at for call in reversed(self.calls)}

    def kind(self, number: int) -> str:
        call = self.calls[number]
        if self.published()[call.task_id] != call.at:
            return "duplicate"
        return "ran" if call.task_id in self.runs else "superseded"

    def queued_until(self, task_id: str) -> float:
        """When its run began, or the next call took its place."""
        if task_id in self.runs:
            return self.runs[task_id][0]
        return min(call.at for call in self.calls if call.at > self.published()[task_id])


def draw_real_runs(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    app.conf.update(broker_url=valkey.url, result_backend=valkey.url)
    celery = CeleryProcesses(processes, "docs.img.pending", {"REDIS_URL": valkey.url})
    celery.start_workers(("worker-1",), "-c", "2")
    rebuild.delay().get(timeout=30)  # the worker is warm
    pending = _story(valkey, (0.0, 0.7, 1.1, 1.5, 3.0), lambda _: rebuild.delay().id)
    debounce = _story(
        valkey,
        (0.0, 0.5, 0.9, 1.5, 1.9, 2.4),
        lambda number: str(render.apply_async((number,), countdown=PAUSE).id),
    )
    _draw("pending", "One runs, one more is queued: no change is missed", pending)
    _draw("debounce", f"Debounce: one run, {PAUSE:g} s after the last call", debounce)
    kinds = [[story.kind(number) for number in range(len(story.calls))] for story in (pending, debounce)]
    console.print(kinds)
    return kinds == [
        ["ran", "ran", "duplicate", "duplicate", "ran"],
        ["superseded"] * 5 + ["ran"],
    ]


def _story(valkey: Valkey, moments: Sequence[float], publish: object) -> Story:
    valkey.client.delete("runs")
    zero, calls = time.time(), []
    for number, moment in enumerate(moments):
        time.sleep(max(0.0, zero + moment - time.time()))
        at = time.time() - zero
        calls.append(Call(at, publish(number)))  # type: ignore[operator]
    last = calls[-1].task_id

    def runs() -> dict[str, tuple[float, float]]:
        found = [json.loads(line) for line in valkey.client.lrange("runs", 0, -1)]
        return {one["id"]: (one["start"] - zero, one["end"] - zero) for one in found}

    wait_until(lambda: last in runs(), "the last run", timeout=30)
    time.sleep(RUN + 0.3)
    return Story(calls, runs())


WIDTH, HEIGHT, LEFT, RIGHT, TOP, ROW, BAR = 960, 268, 110, 24, 92, 40, 22
LANES = ("calls", "queued", "runs")
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #334155 }
.headline { font-size: 19px; font-weight: 600; fill: #0f172a }
.small { font-size: 12px; fill: #52607a }
.card { fill: #ffffff; stroke: #d6dde7 }
.lane { fill: #eef2f7 }
.run { fill: #2f9e6b }
.queued { fill: #b45309 }
.gone { fill: none; stroke: #b45309; stroke-width: 1.5; stroke-dasharray: 4 3 }
.ran { fill: #0369a1; stroke: #0369a1 }
.duplicate { fill: none; stroke: #0369a1; stroke-width: 1.5 }
.superseded { fill: none; stroke: #b45309; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #cbd5e1 }
  .headline { fill: #f1f5f9 }
  .small { fill: #a3b1c6 }
  .card { fill: #0f172a; stroke: #334155 }
  .lane { fill: #1e293b }
  .run { fill: #34d399 }
  .queued { fill: #fbbf24 }
  .gone { stroke: #fbbf24 }
  .ran { fill: #38bdf8; stroke: #38bdf8 }
  .duplicate { stroke: #38bdf8 }
  .superseded { stroke: #fbbf24 }
}
"""


def _draw(name: str, headline: str, story: Story) -> None:
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    svg.set("width", str(WIDTH))
    svg.set("height", str(HEIGHT))
    add(svg, "title", headline)
    add(svg, "style", STYLE)
    add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=12, class_="card")
    add(svg, "text", headline, x=24, y=36, class_="headline")
    seconds = max(end for _, end in story.runs.values()) + 0.6
    per_second = (WIDTH - LEFT - RIGHT) / seconds

    def x(moment: float) -> float:
        return LEFT + (moment + 0.3) * per_second

    for lane in LANES:
        add(svg, "text", lane, x=24, y=_row(lane) + 16)
        add(svg, "rect", x=LEFT, y=_row(lane), width=WIDTH - LEFT - RIGHT, height=BAR, rx=4, class_="lane")
    for number, call in enumerate(story.calls):
        triangle(svg, x(call.at), _row("calls") + 6, story.kind(number))
        add(svg, "text", str(number + 1), x=x(call.at) - 3, y=_row("calls") - 6, class_="small")
    for task_id, at in story.published().items():
        kind = "queued" if task_id in story.runs else "gone"
        width = max(3.0, x(story.queued_until(task_id)) - x(at) - 2)
        add(svg, "rect", x=x(at), y=_row("queued") + 3, width=width, height=BAR - 6, rx=3, class_=kind)
    for start, end in story.runs.values():
        add(svg, "rect", x=x(start), y=_row("runs"), width=x(end) - x(start), height=BAR, rx=3, class_="run")
    _legend(svg, story)
    ET.indent(svg)
    ET.ElementTree(svg).write(FOLDER / f"{name}.svg", encoding="utf-8", xml_declaration=True)


def _legend(svg: ET.Element, story: Story) -> None:
    kinds = {story.kind(number) for number in range(len(story.calls))}
    other = (
        ("duplicate", "a duplicate: it gets the result of the queued call")
        if "duplicate" in kinds
        else ("superseded", "a call that is superseded by the next one: REVOKED")
    )
    for at, kind, meaning in ((LEFT, "ran", "a call that runs"), (LEFT + 150, *other)):
        triangle(svg, at + 6, HEIGHT - 34, kind)
        add(svg, "text", meaning, x=at + 20, y=HEIGHT - 23)
    for at, kind, meaning in ((650, "queued", "it is queued"), (780, "run", f"its run of {RUN:g} s")):
        add(svg, "rect", x=at, y=HEIGHT - 35, width=24, height=14, rx=3, class_=kind)
        add(svg, "text", meaning, x=at + 32, y=HEIGHT - 23)


def _row(lane: str) -> float:
    return TOP + ROW * LANES.index(lane) + (ROW - BAR) / 2


def triangle(svg: ET.Element, x: float, y: float, kind: str) -> None:
    add(svg, "path", d=f"M{x - 6:.1f} {y:.1f}h12l-6 11z", class_=kind)


def add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str | float) -> ET.Element:
    """A new child; `class_` stands for class."""
    element = ET.SubElement(parent, tag)
    element.text = text
    for name, value in attributes.items():
        element.set(name.rstrip("_"), f"{value:.1f}" if isinstance(value, float) else str(value))
    return element


if __name__ == "__main__":
    sys.exit(run(draw_real_runs, "calls are made …"))
