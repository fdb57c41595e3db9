"""One round: orders for one product, and what was sold in the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from celery import Task

from examples.embedded.story import wait_until
from examples.inventory.payment import UNLUCKY
from examples.inventory.stock import database

STOCK = 30
ORDERS = 60
EARLY = 20  # orders that come while the unlucky one's process stands still


@dataclass(frozen=True)
class Outcome:
    sold: int

    @property
    def oversold(self) -> int:
        return max(0, self.sold - STOCK)


def play(sale: Task, product: int, tasks_ended: Callable[[], int], *, pause: bool) -> Outcome:
    """`pause`: a holder is stopped for longer than its lease, and goes on when others have sold meanwhile."""
    _put_on_sale(product)
    before = tasks_ended()
    if pause:
        _sell_while_one_stands_still(sale, product)
    for number in range(EARLY if pause else 0, ORDERS):
        sale.delay(product, f"order {number}")
    wait_until(lambda: tasks_ended() >= before + ORDERS, f"the end of {ORDERS} orders")
    return Outcome(_sold(product))


def _put_on_sale(product: int) -> None:
    with database() as db:
        db.execute("INSERT INTO product (id, left) VALUES (?, ?)", (product, STOCK))


def _sell_while_one_stands_still(sale: Task, product: int) -> None:
    sale.delay(product, UNLUCKY)
    wait_until(lambda: _pid_of_unlucky(product), "the order whose process is stopped")
    for number in range(1, EARLY):
        sale.delay(product, f"order {number}")
    wait_until(lambda: _sold(product) == EARLY - 1, "the end of the lease, and sales by others")
    os.kill(_pid_of_unlucky(product), signal.SIGCONT)
    wait_until(lambda: _is_sold(product, UNLUCKY), "the sale of the one that was stopped")


def _pid_of_unlucky(product: int) -> int:
    query = "SELECT pid FROM charge WHERE product = ? AND order_id = ?"
    with database() as db:
        return next((pid for (pid,) in db.execute(query, (product, UNLUCKY))), 0)


def _is_sold(product: int, order: str) -> bool:
    with database() as db:
        query = "SELECT count(*) FROM sale WHERE product = ? AND order_id = ?"
        return bool(db.execute(query, (product, order)).fetchone()[0])


def _sold(product: int) -> int:
    with database() as db:
        return int(db.execute("SELECT count(*) FROM sale WHERE product = ?", (product,)).fetchone()[0])
