"""The payment provider: it takes its time, and charges an order once, however often it is asked."""

from __future__ import annotations

import os
import signal
import time

from examples.inventory.stock import database

ANSWER_SECONDS = 0.02
UNLUCKY = "unlucky"  # while this order is charged, the process stands still


def charge(product: int, order: str) -> None:
    time.sleep(ANSWER_SECONDS)
    with database() as db:
        row = (product, order, os.getpid())
        first = db.execute("INSERT OR IGNORE INTO charge VALUES (?, ?, ?)", row).rowcount == 1
    if first and order == UNLUCKY:
        os.kill(os.getpid(), signal.SIGSTOP)
