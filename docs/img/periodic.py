"""Draws periodic.svg from a real run: two beats, two workers, four ticks, and one worker that is killed.

`python -m docs.img.periodic`, in the root of the repository, takes about 45 seconds. It needs the packages
that `make demo` needs. The exit code is 1 when the run does not show what the picture is meant to show.
"""

# ruff: noqa: INP001 - docs is a folder of pages, not a package

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import redis
from celery import Celery
from celery.signals import after_task_publish, beat_init
from rich.console import Console

from celery_rlock import LockedTask
from celery_rlock.signals import lock_busy
from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Process, Processes
from examples.embedded.story import run, wait_until
from examples.embedded.valkey import Valkey

PICTURE = Path(__file__).with_name("periodic.svg")
BEATS, WORKERS = ("beat-1", "beat-2"), ("worker-1", "worker-2")
TICKS, TICK = 4, 8.0  # seconds between two ticks
RUN, HOLD, TTL = 2.0, 3.0, 2.0  # seconds
KILLED_TICK, KILL_AFTER = 2, 1.0  # seconds after the start of its run

app = Celery("periodic", broker=os.environ.get("REDIS_URL"))
app.conf.update(
    beat_schedule={"report": {"task": "report", "schedule": TICK}},
    task_acks_late=True,  # the broker delivers a killed worker's message again
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,
    },
)


@app.task(base=LockedTask, bind=True, name="report", lock_busy="skip", lock_hold_at_least=HOLD, lock_ttl=TTL)
def report(self: LockedTask) -> None:
    _record(event="start", task_id=self.request.id, where=_short(self.request.hostname))
    time.sleep(RUN)
    _record(event="end", task_id=self.request.id, where=_short(self.request.hostname))


@lock_busy.connect
def _record_skip(action: str, request: Any, **_: Any) -> None:
    if action == "skip":
        _record(event="skip", task_id=request.id, where=_short(request.hostname))


@beat_init.connect
def _record_what_beat_publishes(**_: Any) -> None:
    after_task_publish.connect(_record_published, weak=False)


def _record_published(headers: dict[str, Any], **_: Any) -> None:
    _record(event="published", task_id=headers["id"], where=os.environ["BEAT"])


def _record(**event: Any) -> None:
    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    client.rpush("events", json.dumps({"at": time.time(), **event}))


def _short(hostname: str | None) -> str:
    return str(hostname).partition("@")[0]


@dataclass(frozen=True)
class Bar:
    """One run. A run that was killed ended at the kill."""

    task_id: str
    worker: str
    start: float
    end: float
    killed: bool = False


@dataclass(frozen=True)
class Events:
    """What the processes told so far; the kill is ours."""

    all: list[dict[str, Any]]
    kill: tuple[str, float] = ("", math.inf)  # the worker, and when; not yet

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.all if event["event"] == kind]

    @property
    def begin(self) -> float:
        return min(float(event["at"]) for event in self.of_kind("published"))

    def ticks_of(self, beat: str) -> int:
        return Counter(event["where"] for event in self.of_kind("published"))[beat]

    @property
    def bars(self) -> list[Bar]:
        """Every run that ended, and the one that was killed."""
        ends = {(event["task_id"], event["where"]): float(event["at"]) for event in self.of_kind("end")}
        bars = []
        for start in self.of_kind("start"):
            task_id, worker, at = str(start["task_id"]), str(start["where"]), float(start["at"])
            end = ends.get((task_id, worker))
            if end is not None:
                bars.append(Bar(task_id, worker, at, end))
            elif worker == self.kill[0]:
                bars.append(Bar(task_id, worker, at, self.kill[1], killed=True))
        return sorted(bars, key=lambda bar: bar.start)

    @property
    def completed(self) -> list[Bar]:
        return [bar for bar in self.bars if not bar.killed]

    @property
    def overlaps(self) -> int:
        return sum(
            max(one.start, other.start) < min(one.end, other.end) for one, other in combinations(self.bars, 2)
        )

    @property
    def skipped(self) -> set[str]:
        return {event["task_id"] for event in self.of_kind("skip")}

    @property
    def lost(self) -> set[str]:
        """Messages that a beat published, and that neither ran to their end nor were skipped."""
        published = {event["task_id"] for event in self.of_kind("published")}
        return published - self.skipped - {bar.task_id for bar in self.completed}

    @property
    def takeover(self) -> Bar:
        """The first run that started after the kill."""
        return next(bar for bar in self.bars if bar.start > self.kill[1])


def draw_a_real_run(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    celery = CeleryProcesses(processes, "docs.img.periodic", {"REDIS_URL": valkey.url})
    workers = dict(zip(WORKERS, celery.start_workers(WORKERS, "-c", "2"), strict=True))
    beats = {}
    for name in BEATS:
        beats[name] = celery.start_beat(name, {"BEAT": name})
        time.sleep(0.4)

    wait_until(lambda: len(_events(valkey).of_kind("start")) >= KILLED_TICK, "the run to kill")
    worker = str(_events(valkey).of_kind("start")[-1]["where"])
    time.sleep(KILL_AFTER)
    workers[worker].kill()
    kill = (worker, time.time())

    wait_until(lambda: _all_ticked(_events(valkey), beats), "the last tick", timeout=90)
    wait_until(lambda: _events(valkey).completed[TICKS - 1 :], "the last run")
    time.sleep(RUN + TTL)  # a run too many would start by now
    events = Events(_events(valkey).all, kill)
    write_picture(events, PICTURE)
    console.print(_summary(events))
    return len(events.completed) == len(events.skipped) == TICKS and not events.overlaps and not events.lost


def _events(valkey: Valkey) -> Events:
    return Events([json.loads(line) for line in valkey.client.lrange("events", 0, -1)])


def _all_ticked(events: Events, beats: dict[str, Process]) -> bool:
    """Whether every beat has published its last tick. A beat that has done so is stopped."""
    for name, beat in beats.items():
        if beat.running and events.ticks_of(name) >= TICKS:
            beat.stop()
    return all(events.ticks_of(name) >= TICKS for name in beats)


def _summary(events: Events) -> str:
    return (
        f"{len(events.of_kind('published'))} messages: {len(events.completed)} runs completed, "
        f"{len(events.skipped)} skipped, {events.overlaps} overlaps, {len(events.lost)} lost"
    )


WIDTH, HEIGHT, LEFT, RIGHT = 960, 330, 110, 24
TOP, ROW, BAR = 112, 36, 22
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #334155 }
.headline { font-size: 19px; font-weight: 600; fill: #0f172a }
.small { font-size: 12px; fill: #52607a }
.good { fill: #15803d; font-weight: 600 }
.card { fill: #ffffff; stroke: #d6dde7 }
.lane { fill: #eef2f7 }
.tick { stroke: #94a3b8; stroke-dasharray: 3 4 }
.run { fill: #2f9e6b }
.killed { fill: #c2410c }
.lease { fill: none; stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 4 3 }
.cross { fill: none; stroke: #7e22ce; stroke-width: 3.5; stroke-linecap: round }
.ran { fill: #0369a1; stroke: #0369a1 }
.skipped { fill: none; stroke: #0369a1; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #cbd5e1 }
  .headline { fill: #f1f5f9 }
  .small { fill: #a3b1c6 }
  .good { fill: #4ade80 }
  .card { fill: #0f172a; stroke: #334155 }
  .lane { fill: #1e293b }
  .tick { stroke: #64748b }
  .run { fill: #34d399 }
  .killed { fill: #fb923c }
  .lease { stroke: #fb923c }
  .cross { stroke: #d8b4fe }
  .ran { fill: #38bdf8; stroke: #38bdf8 }
  .skipped { stroke: #38bdf8 }
}
"""


def write_picture(events: Events, path: Path) -> None:
    """One row for each beat and each worker, on one time axis; the background is part of the picture."""
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    svg.set("width", str(WIDTH))
    svg.set("height", str(HEIGHT))
    _add(svg, "title", f"Two beats, two workers, one worker killed. {_summary(events)}")
    _add(svg, "style", STYLE)
    _add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=12, class_="card")
    headline = "Two beats, four ticks, one worker killed: four runs, one at a time"
    _add(svg, "text", headline, x=24, y=36, class_="headline")
    _add(svg, "text", _summary(events), x=24, y=60, class_="good")
    _Timeline(svg, events).draw()
    _legend(svg)
    ET.indent(svg)
    ET.ElementTree(svg).write(path, encoding="utf-8", xml_declaration=True)


class _Timeline:
    def __init__(self, svg: ET.Element, events: Events) -> None:
        self._svg, self._events = svg, events
        self._zero = events.begin - 0.6
        seconds = max(bar.end for bar in events.bars) + 0.6 - self._zero
        self._per_second = (WIDTH - LEFT - RIGHT) / seconds

    def draw(self) -> None:
        for number in range(TICKS):
            x = self._x(self._events.begin + number * TICK)
            _add(self._svg, "line", x1=x, x2=x, y1=TOP - 8, y2=TOP + ROW * 4, class_="tick")
            _add(self._svg, "text", f"tick {number + 1}", x=x, y=TOP - 14, class_="small")
        for name in (*BEATS, *WORKERS):
            self._lane(name)
        for event in self._events.of_kind("published"):
            kind = "skipped" if event["task_id"] in self._events.skipped else "ran"
            _triangle(self._svg, self._x(event["at"]), _row(event["where"]) + 6, kind)
        for bar in self._events.bars:
            self._bar(bar.worker, bar.start, bar.end, "killed" if bar.killed else "run")
        self._kill()

    def _lane(self, name: str) -> None:
        killed, at = self._events.kill
        end = self._x(at) if killed == name else WIDTH - RIGHT
        _add(self._svg, "text", name, x=24, y=_row(name) + 16)
        _add(self._svg, "rect", x=LEFT, y=_row(name), width=end - LEFT, height=BAR, rx=4, class_="lane")

    def _kill(self) -> None:
        worker, at = self._events.kill
        self._bar(worker, at, self._events.takeover.start, "lease")
        _cross(self._svg, self._x(at), _row(worker) + BAR / 2)
        x = self._x(self._events.takeover.start) + 8
        _add(self._svg, "text", f"{self._events.takeover.worker} takes over", x=x, y=_row(worker) + 16)

    def _bar(self, worker: str, start: float, end: float, kind: str) -> None:
        x = self._x(start)
        _add(self._svg, "rect", x=x, y=_row(worker), width=self._x(end) - x, height=BAR, rx=3, class_=kind)

    def _x(self, moment: float) -> float:
        return LEFT + (moment - self._zero) * self._per_second


def _row(name: str) -> float:
    return TOP + ROW * (*BEATS, *WORKERS).index(name) + (ROW - BAR) / 2


def _legend(svg: ET.Element) -> None:
    first, second = HEIGHT - 44, HEIGHT - 18
    for x, y, kind, meaning in (
        (LEFT + 12, first, "ran", "a beat publishes the task, and it runs"),
        (LEFT + 12, second, "skipped", "a beat publishes the task, and it is skipped: REVOKED"),
    ):
        _triangle(svg, x, y - 10, kind)
        _add(svg, "text", meaning, x=x + 18, y=y)
    for x, y, kind, meaning in (
        (520, first, "run", f"a run of {RUN:g} s"),
        (660, first, "killed", "a run that was killed"),
        (520, second, "lease", f"the lease ends (lock_ttl={TTL:g}), the message comes again"),
    ):
        _add(svg, "rect", x=x, y=y - 12, width=24, height=14, rx=3, class_=kind)
        _add(svg, "text", meaning, x=x + 32, y=y)
    _cross(svg, 852, first - 5)
    _add(svg, "text", "kill -9", x=868, y=first)


def _cross(svg: ET.Element, x: float, y: float) -> None:
    _add(svg, "path", d=f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12", class_="cross")


def _triangle(svg: ET.Element, x: float, y: float, kind: str) -> None:
    _add(svg, "path", d=f"M{x - 6:.1f} {y:.1f}h12l-6 11z", class_=kind)


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str | float) -> ET.Element:
    """A new child; `class_` stands for class."""
    element = ET.SubElement(parent, tag)
    element.text = text
    for name, value in attributes.items():
        element.set(name.rstrip("_"), f"{value:.1f}" if isinstance(value, float) else str(value))
    return element


if __name__ == "__main__":
    sys.exit(run(draw_a_real_run, "beats tick …"))
