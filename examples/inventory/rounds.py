"""One round: orders for one product, and how many pieces were sold."""

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
EARLY = 20  # orders that arrive while the process of the unlucky order is paused


@dataclass(frozen=True)
class Outcome:
    sold: int

    @property
    def oversold(self) -> int:
        return max(0, self.sold - STOCK)


def play(sale: Task, product: int, tasks_ended: Callable[[], int], *, pause: bool) -> Outcome:
    """With `pause`, one holder of the lock is paused until its lease has ended and others have sold."""
    _put_on_sale(product)
    before = tasks_ended()
    if pause:
        _sell_while_one_is_paused(sale, product)
    for number in range(EARLY if pause else 0, ORDERS):
        sale.delay(product, f"order {number}")
    wait_until(lambda: tasks_ended() >= before + ORDERS, f"the end of {ORDERS} orders")
    return Outcome(_sold(product))


def _put_on_sale(product: int) -> None:
    with database() as db:
        db.execute("INSERT INTO product (id, left) VALUES (?, ?)", (product, STOCK))


def _sell_while_one_is_paused(sale: Task, product: int) -> None:
    sale.delay(product, UNLUCKY)
    wait_until(lambda: _pid_of_unlucky(product), "the order whose process is paused")
    for number in range(1, EARLY):
        sale.delay(product, f"order {number}")
    wait_until(lambda: _sold(product) == EARLY - 1, "the end of the lease, and sales by other processes")
    os.kill(_pid_of_unlucky(product), signal.SIGCONT)
    wait_until(lambda: _is_sold(product, UNLUCKY), "the sale of the paused order")


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
