"""This lock beside the others that a Celery project can install: one run, one server, a real worker for each.

    python -m benchmarks.peers [page]

Prints Markdown, or writes it into the page between the two marks. It needs the peers: `make bench-peers`.
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
from benchmarks.peers_app import TTL, VARIANTS, build
from tests.support.servers import Server, available_kinds
from tests.support.workers import Worker

BEGIN, END = "<!-- measured: make bench-peers writes from here -->", "<!-- measured: to here -->"
QUESTIONS = {
    f"`kill -9` of the child, TTL {TTL} s: the next one runs after": behaviour.killed_child,
    f"a run of {TTL + 6} s, TTL {TTL} s": behaviour.run_longer_than_its_ttl,
    "`f(1)` and `f(a=1)`": behaviour.positional_and_keyword,
    "`send_task` while one runs": behaviour.sent_by_name,
    "`self.retry()`": behaviour.own_retry,
    "revoked in the queue, its key": behaviour.revoked,
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
    report = "\n\n".join((cost_table(costs), answer_table(answers), surroundings(time.monotonic() - started)))
    publish(report)


def cost_table(costs: dict[str, cost.Cost]) -> str:
    plain = costs["plain task"]
    rows = [
        "| | publish | run | together | CPU | more than the plain task, time | CPU |",
        "|---" + "|---:" * 6 + "|",
    ]
    for variant, taken in costs.items():
        together = taken.publish + taken.run
        more = (together - plain.publish - plain.run, taken.cpu - plain.cpu)
        shown = ("", "") if taken == plain else (f"{figure:+.0f}" for figure in more)
        cells = (f"{taken.publish:.0f}", f"{taken.run:.0f}", f"{together:.0f}", f"{taken.cpu:.0f}", *shown)
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


def publish(report: str) -> None:
    if len(sys.argv) == 1:
        print(report)
        return
    page = Path(sys.argv[1])
    measured = f"{BEGIN}\n\n{report}\n\n{END}"
    page.write_text(
        re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: measured, page.read_text(), flags=re.DOTALL)
    )
    print(report)


if __name__ == "__main__":
    main()
