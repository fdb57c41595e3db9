"""The payment provider. It is slow, and charges an order only once, even if it is asked twice."""

from __future__ import annotations

import os
import signal
import time

from examples.inventory.stock import database

ANSWER_SECONDS = 0.02
UNLUCKY = "unlucky"  # charging this order pauses the process


def charge(product: int, order: str) -> None:
    time.sleep(ANSWER_SECONDS)
    with database() as db:
        row = (product, order, os.getpid())
        first = db.execute("INSERT OR IGNORE INTO charge VALUES (?, ?, ?)", row).rowcount == 1
    if first and order == UNLUCKY:
        os.kill(os.getpid(), signal.SIGSTOP)
