"""This lock beside the others that a Celery project can install: one run, one server, a real worker for each.

    python -m benchmarks.peers [page]

Prints Markdown, and writes it into the page between its marks. It needs the peers: `make bench-peers`.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from celery import Celery

from benchmarks import peers_behaviour as behaviour
from benchmarks import peers_cost as cost
from benchmarks.peers_app import VARIANTS, build
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

QUESTIONS = {
    "killed": behaviour.killed_child,
    "long run": behaviour.run_longer_than_its_ttl,
    "`f(1)`, `f(a=1)`": behaviour.positional_and_keyword,
    "`send_task`": behaviour.sent_by_name,
    "`self.retry()`": behaviour.own_retry,
    "revoked": behaviour.revoked,
}


@contextmanager
def fleet(apps: dict[str, Celery], concurrency: int) -> Iterator[dict[str, tuple[Celery, Worker]]]:
    """A worker for each variant, on its own queue and loading no other lock."""
    with ExitStack() as stack:
        workers = []
        for variant, app in apps.items():
            worker = Worker(
                "benchmarks.peers_app:app",
                concurrency=concurrency,
                queues=(app.conf.task_default_queue,),
                env={"PEERS_VARIANT": variant},
            )
            worker.launch()
            workers.append(stack.enter_context(worker))
        for worker in workers:
            worker.await_ready()
        yield dict(zip(apps, zip(apps.values(), workers, strict=True), strict=True))


def main() -> None:
    started = time.monotonic()
    with Server.start(available_kinds()[0]) as server:
        os.environ["PEERS_URL"] = server.url
        apps = {variant: build(variant) for variant in VARIANTS}
        with fleet(apps, concurrency=1) as workers:
            costs = cost.measure(workers)
        locks = {variant: app for variant, app in apps.items() if variant != "plain task"}
        with fleet(locks, concurrency=4):
            answers = {what: behaviour.ask_all(locks, ask) for what, ask in QUESTIONS.items()}
    publish(cost_table(costs), answer_table(answers), surroundings(time.monotonic() - started))


def cost_table(costs: dict[str, cost.Cost]) -> str:
    plain = costs["plain task"]
    rows = ["| | publish | run | more than plain | CPU | more than plain |", "|---" + "|---:" * 5 + "|"]
    for variant, taken in costs.items():
        more = taken.publish + taken.run - plain.publish - plain.run, taken.cpu - plain.cpu
        time_more, cpu_more = ("", "") if taken == plain else (f"{figure:+.0f}" for figure in more)
        cells = (f"{taken.publish:.0f}", f"{taken.run:.0f}", time_more, f"{taken.cpu:.0f}", cpu_more)
        rows.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(rows)


def answer_table(answers: dict[str, dict[str, str]]) -> str:
    rows = [f"| | {' | '.join(answers)} |", "|---" * (len(answers) + 1) + "|"]
    variants = next(iter(answers.values()))
    rows += [f"| {name} | {' | '.join(answer[name] for answer in answers.values())} |" for name in variants]
    return "\n".join(rows)


def surroundings(seconds: float) -> str:
    packages = ("celery", "redis", *dict.fromkeys(package for _, package in VARIANTS.values() if package))
    versions = ", ".join(f"{name} {version(name)}" for name in dict.fromkeys(packages))
    return (
        f"Measured on {time.strftime('%Y-%m-%d')} in {seconds:.0f} s: Python {platform.python_version()}, "
        f"{versions}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}."
    )


def publish(*parts: str) -> None:
    """Print the parts, and put each between its marks in the page."""
    print("\n\n".join(parts))
    for page in map(Path, sys.argv[1:]):
        text = page.read_text()
        for name, part in zip(("cost", "behaviour", "surroundings"), parts, strict=True):
            begin, end = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
            between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
            text = between.sub(lambda _, new=f"{begin}\n\n{part}\n\n{end}": new, text)
        page.write_text(text)


if __name__ == "__main__":
    main()
