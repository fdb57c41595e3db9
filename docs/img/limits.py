"""Draws limits.svg from a real run: eight calls of one customer, three places, and who runs in which.

`python -m docs.img.limits`, in the root of the repository, takes about 10 seconds. It needs the packages that
`make demo` needs. The exit code is 1 when more than three calls ran at once, or one of them did not run.
"""

# ruff: noqa: INP001 - docs is a folder of pages, not a package

from __future__ import annotations

import json
import os
import sys
import time
from typing import NamedTuple
from xml.etree import ElementTree as ET

import redis
from celery import Celery
from rich.console import Console

from celery_rlock import LockedTask
from docs.img.pending import BAR, FOLDER, LEFT, RIGHT, ROW, STYLE, TOP, WIDTH, add, triangle
from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.story import run, wait_until
from examples.embedded.valkey import Valkey

LIMIT, HEIGHT = 3, 348
NOTICEABLE = 0.1  # seconds
#: When each call is made, and for how long it runs, in seconds.
CALLS = ((0.0, 1.6), (0.2, 2.2), (0.4, 1.2), (0.7, 1.0), (0.9, 1.4), (1.1, 0.9), (1.3, 1.2), (2.0, 1.0))
LANES = ("calls", "waits", *(f"place {slot}" for slot in range(LIMIT)))

app = Celery("limits", broker=os.environ.get("REDIS_URL"), backend=os.environ.get("REDIS_URL"))


@app.task(base=LockedTask, bind=True, name="export", lock_key="customer:{customer}", lock_limit=LIMIT)
def export(self: LockedTask, customer: str, number: int, seconds: float) -> None:  # noqa: ARG001 - in the key
    begin = time.time()
    time.sleep(seconds)
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as store:
        store.hset("runs", str(number), json.dumps([self.lock.slot, begin, time.time()]))


class Run(NamedTuple):
    """One run, in seconds after the first call."""

    called: float
    slot: int
    begin: float
    end: float


def draw_a_real_run(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    app.conf.update(broker_url=valkey.url, result_backend=valkey.url)
    celery = CeleryProcesses(processes, "docs.img.limits", {"REDIS_URL": valkey.url})
    celery.start_workers(("worker-1", "worker-2"), "-c", "3")
    for name in ("warm", "up"):
        export.delay(name, -1, 0.0).get(timeout=30)
    zero, called = time.time(), []
    for number, (moment, seconds) in enumerate(CALLS):
        time.sleep(max(0.0, zero + moment - time.time()))
        called.append(time.time() - zero)
        export.delay("acme", number, seconds)
    wait_until(lambda: valkey.client.hlen("runs") == len(CALLS) + 1, "the last run", timeout=60)
    runs = []
    for number, at in enumerate(called):
        slot, begin, end = json.loads(valkey.client.hget("runs", str(number)) or "")
        runs.append(Run(at, slot, begin - zero, end - zero))
    most = max(sum(other.begin <= one.begin < other.end for other in runs) for one in runs)
    console.print(f"{len(runs)} runs, at most {most} at once")
    _draw(runs)
    return most == LIMIT


def _draw(runs: list[Run]) -> None:
    headline = f"lock_limit={LIMIT}: eight calls of one customer, never more than three runs"
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    svg.set("width", str(WIDTH))
    svg.set("height", str(HEIGHT))
    add(svg, "title", headline)
    add(svg, "style", STYLE + ".on { fill: #ffffff }\n")
    add(svg, "rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=12, class_="card")
    add(svg, "text", headline, x=24, y=36, class_="headline")
    per_second = (WIDTH - LEFT - RIGHT) / (max(run.end for run in runs) + 0.6)

    def x(moment: float) -> float:
        return LEFT + (moment + 0.3) * per_second

    rows = {lane: TOP + ROW * number + (ROW - BAR) / 2 for number, lane in enumerate(LANES)}
    for lane, y in rows.items():
        add(svg, "text", lane, x=24, y=y + 16)
        add(svg, "rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=BAR, rx=4, class_="lane")
    waiting = sorted((run for run in runs if run.begin - run.called > NOTICEABLE), key=lambda run: run.called)
    for number, one in enumerate(runs):
        triangle(svg, x(one.called), rows["calls"] + 6, "ran")
        add(svg, "text", str(number + 1), x=x(one.called) - 3, y=rows["calls"] - 6, class_="small")
        place = rows[f"place {one.slot}"]
        add(
            svg,
            "rect",
            x=x(one.begin),
            y=place,
            width=x(one.end) - x(one.begin),
            height=BAR,
            rx=3,
            class_="run",
        )
        add(svg, "text", str(number + 1), x=x(one.begin) + 8, y=place + 16, class_="on")
    for number, one in enumerate(waiting):
        y = rows["waits"] + 1 + number * BAR / len(waiting)
        add(svg, "rect", x=x(one.called), y=y, width=x(one.begin) - x(one.called), height=2, class_="queued")
    legend = (
        (LEFT, "queued", "waits for a place"),
        (LEFT + 190, "run", "its run, in the place self.lock.slot"),
    )
    for at, kind, meaning in legend:
        add(svg, "rect", x=at, y=HEIGHT - 35, width=24, height=14, rx=3, class_=kind)
        add(svg, "text", meaning, x=at + 32, y=HEIGHT - 23)
    ET.indent(svg)
    ET.ElementTree(svg).write(FOLDER / "limits.svg", encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(run(draw_a_real_run, "calls are made …"))
