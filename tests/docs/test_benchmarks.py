"""The benchmarks run, at a small size, and the pages have what they measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from benchmarks import cycle, growth, handover, handover_tasks, peers_cost, scaling, traffic
from benchmarks.cpu import cpu
from benchmarks.peers_app import PLAIN, PLAIN_AGAIN, build, fleet
from tests.docs.pages import DOCS, ROOT, page
from tests.support.processes import wait_until

PAGES = ("docs/comparison.md", "docs/waiting.md", "docs/scaling.md")
PICTURES = ("cost.svg", "handover.svg", "makespan.svg", "growth.svg")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the scheduler's accounts are in Linux's /proc")

#: The main thread sleeps while the other one works.
BUSY_THREAD = """
import threading, time
def work():
    while True: pass
threading.Thread(target=work, daemon=True).start()
time.sleep(60)
"""


@on_linux
def test_the_cpu_time_of_a_process_has_that_of_its_living_threads():
    with subprocess.Popen([sys.executable, "-c", BUSY_THREAD]) as process:
        try:
            wait_until(lambda: cpu([process.pid]) > 0.3, timeout=30, what="the thread's CPU time")
        finally:
            process.kill()


@on_linux
def test_a_lock_costs_cpu_time_in_the_child_and_the_server(server, monkeypatch, capsys):
    monkeypatch.setenv("PEERS_URL", server.url)
    apps = {kind: build(kind) for kind in (PLAIN, PLAIN_AGAIN, "LockedTask")}
    with fleet(apps, concurrency=1) as workers:
        subjects = {
            kind: peers_cost.Subject(apps[kind], worker, worker.children()[0], server)
            for kind, worker in workers.items()
        }
        costs = peers_cost.measure(subjects, seconds=0)
    plain, locked = costs[PLAIN][0], costs["LockedTask"][0]
    assert min(plain) > 0
    assert locked.child > plain.child
    assert locked.server > plain.server
    peers_cost.report(costs, pages=())
    assert "| LockedTask | " in capsys.readouterr().out


@on_linux
def test_a_cycle_is_measured_beside_that_of_redis_py(server):
    costs = cycle.measure(server, seconds=0)
    assert len(costs) == 3
    assert all(figure > 0 for turns in costs.values() for cost in turns for figure in cost)


@on_linux
@pytest.mark.parametrize("subject", ["held", "execution", "keys"])
def test_the_growth_of_the_cost_is_measured(subject, monkeypatch):
    monkeypatch.setattr(growth, "RENEWED_FOR", 0.3)
    costs = growth.measure(growth.SUBJECTS[subject], largest=10)
    assert all([size for size, _ in series] == [1, 10] for series in costs.values())
    assert re.search(r"\| [+-]\d\.\d\d \|$", growth.as_table("locks", costs))


@on_linux
@pytest.mark.slow
def test_tasks_that_wait_are_measured(server, monkeypatch, capsys):
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.setenv(name, server.url)
    with handover_tasks.fleets(handover_tasks.VARIANTS[:1]) as ready:
        turns = handover.measure(ready, rounds=1, largest=10)
    (taken,) = turns.values()
    assert [(turn.tasks, turn.settled) for turn in taken] == [(3, False), (10, False), (10, True)]
    assert all(turn.stretch > 1 and turn.deliveries >= turn.tasks for turn in taken)
    handover.report_tasks(turns, pages=())
    assert "| LockedTask | " in capsys.readouterr().out


@on_linux
def test_a_renewal_of_many_locks_shares_its_request(server):
    costs = traffic._verbs(traffic.Meter(server), 20)
    assert costs[scaling.RENEWAL].requests == 1
    assert costs[scaling.RENEWAL_OF_MANY].requests < 0.2


def test_twice_the_tasks_are_twice_the_traffic_and_the_same_connections():
    figures = json.loads(scaling.FIGURES.read_text())
    one, two = (
        scaling.estimate(scaling.Fleet(workers=100, tasks=tasks, contended=0.5, wait=100), figures)
        for tasks in (1000, 2000)
    )
    assert number(two["requests a second"]) == pytest.approx(2 * number(one["requests a second"]), rel=0.01)
    assert two["connections to each primary"] == one["connections to each primary"]


def test_the_calculator_runs():
    words = page("docs/scaling.md").blocks("console")[0].code.split()
    assert words[:2] == ["$", "python"]
    ran = subprocess.run([sys.executable, *words[2:]], cwd=ROOT, check=True, capture_output=True, text=True)
    assert re.search(r"connections to each primary +\d", ran.stdout)


@pytest.mark.parametrize("name", scaling.EXAMPLES)
def test_the_page_shows_what_the_calculator_says(name):
    figures = json.loads(scaling.FIGURES.read_text())
    for what, figure in scaling.estimate(scaling.EXAMPLES[name], figures).items():
        assert f"| {what} | {figure} |" in part(page("docs/scaling.md").text, name)


@pytest.mark.parametrize("name", PAGES)
def test_no_part_of_a_page_is_empty(name):
    text = page(name).text
    names = re.findall(r"<!-- measured: (.*?) -->", text)
    assert names
    assert [each for each in names if "|" not in part(text, each)] == []


@pytest.mark.parametrize("name", PICTURES)
def test_a_plot_has_lines_or_bars_and_a_dark_counterpart_of_every_colour(name):
    svg = ET.parse(DOCS / "img" / name).getroot()
    tags = [element.tag.rpartition("}")[2] for element in svg.iter()]
    assert tags.count("polyline") + tags.count("rect") > 3
    light, _, dark = next(e.text for e in svg.iter() if e.tag.endswith("style")).partition("@media")
    coloured = [line.split("{")[0].strip() for line in light.splitlines() if "#" in line]
    assert coloured
    assert all(f"  {kind} {{" in dark for kind in coloured)


def part(text, name):
    return text.partition(f"<!-- measured: {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


def number(text):
    return float(text.replace(",", ""))
