"""Sells the same stock in four rounds, and prints how many pieces each round sold."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Process, Processes
from examples.embedded.story import figures, run
from examples.embedded.valkey import Valkey
from examples.inventory import app as sales
from examples.inventory.rounds import ORDERS, STOCK, Outcome, play
from examples.inventory.stock import SCHEMA, database

ROUNDS = (
    ("without the lock", sales.plain_sale, False),
    ("with the lock", sales.locked_sale, False),
    ("with the lock, holder paused", sales.locked_sale, True),
    ("lock and token, holder paused", sales.fenced_sale, True),
)


def inventory(console: Console, processes: Processes) -> bool:
    workers = _start(processes)
    console.print(
        f"{ORDERS} orders arrive for {STOCK} pieces. In two rounds the process that holds\n"
        "the lock is paused in the middle of a sale, for longer than its lease.\n"
    )
    table = figures("stock", "orders", "sold", "oversold", "refused writes")
    outcomes = []
    for product, (title, sale, pause) in enumerate(ROUNDS):
        refused = _refused(workers)
        outcome = play(sale, product, lambda: _ended(workers), pause=pause)
        refused = _refused(workers) - refused
        table.add_row(title, *map(str, (STOCK, ORDERS, outcome.sold, outcome.oversold, refused)))
        outcomes.append(outcome)
    console.print(table)
    return _as_expected(*outcomes)


def _start(processes: Processes) -> list[Process]:
    env = {"REDIS_URL": Valkey(processes).url, "INVENTORY_DB": str(processes.directory / "stock.sqlite")}
    os.environ.update(env)
    sales.app.conf.update(broker_url=env["REDIS_URL"])
    with database() as db:
        db.executescript(SCHEMA)
    celery = CeleryProcesses(processes, "examples.inventory.app", env)
    return celery.start_workers(("worker-1", "worker-2"), "-c", "2")


def _as_expected(plain: Outcome, locked: Outcome, lost: Outcome, fenced: Outcome) -> bool:
    oversells = plain.oversold > 0 and lost.oversold > 0
    return oversells and (locked.sold, fenced.sold) == (STOCK, STOCK)


def _ended(workers: list[Process]) -> int:
    ends = (" succeeded in ", " raised unexpected: ")
    return sum(worker.log.count(end) for worker in workers for end in ends)


def _refused(workers: list[Process]) -> int:
    return sum(worker.log.count("retry: Retry in 0s: StaleToken") for worker in workers)


if __name__ == "__main__":
    sys.exit(run(inventory, "orders are arriving …"))
