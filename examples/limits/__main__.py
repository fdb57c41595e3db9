"""Exports of two customers and calls of an API, without the lock and with it."""

from __future__ import annotations

import sys

from celery import Task
from rich.console import Console

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.story import figures, run, wait_until
from examples.embedded.valkey import Valkey
from examples.limits.app import PERIOD, PLACES, RATE, app, call, export, plain_call, plain_export

CUSTOMERS = {"ann": "pro", "bob": "free"}
EXPORTS, CALLS = 12, 16


def limits(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    app.conf.broker_url = valkey.url
    celery = CeleryProcesses(processes, "examples.limits.app", {"REDIS_URL": valkey.url})
    celery.start_workers(("worker-1", "worker-2"), "-c", "4")
    console.print(
        f"Two workers with four processes each. Ann has {PLACES['pro']} exports at once, Bob has "
        f"{PLACES['free']}.\nThe API takes {RATE} calls in any {PERIOD:g} s.\n"
    )
    most = {task.name: _exports(valkey, task) for task in (plain_export, export)}
    closest = {task.name: _calls(valkey, task) for task in (plain_call, call)}
    _show(console, most, closest)
    within = all(most[export.name][name] <= PLACES[plan] for name, plan in CUSTOMERS.items())
    return within and closest[call.name] <= RATE


def _exports(valkey: Valkey, task: Task) -> dict[str, int]:
    """The most exports of each customer that ran at once."""
    for _ in range(EXPORTS):
        for customer, plan in CUSTOMERS.items():
            task.delay(customer, plan)
    return {customer: max(map(int, _noted(valkey, task, f":{customer}", EXPORTS))) for customer in CUSTOMERS}


def _calls(valkey: Valkey, task: Task) -> int:
    """The most calls within any period."""
    for _ in range(CALLS):
        task.delay()
    times = sorted(map(float, _noted(valkey, task, "", CALLS)))
    return max(sum(start <= time < start + PERIOD for time in times) for start in times)


def _noted(valkey: Valkey, task: Task, of: str, count: int) -> list[bytes]:
    name = task.name.rpartition(".")[2] + of
    wait_until(lambda: int(valkey.client.llen(name)) == count, f"{count} runs of {name}")
    return valkey.client.lrange(name, 0, -1)


def _show(console: Console, most: dict[str, dict[str, int]], closest: dict[str, int]) -> None:
    table = figures("exports of Ann at once", "of Bob at once", f"calls within {PERIOD:g} s")
    for title, exports, calls in (
        ("without the lock", plain_export, plain_call),
        ("with lock_limit", export, call),
    ):
        table.add_row(title, *map(str, most[exports.name].values()), str(closest[calls.name]))
    console.print(table)


if __name__ == "__main__":
    sys.exit(run(limits, "tasks are running …"))
