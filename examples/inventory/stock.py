"""The stock, in SQLite. It refuses a token that is smaller than one it has seen."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

SCHEMA = """
CREATE TABLE product (id INTEGER PRIMARY KEY, left INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0);
CREATE TABLE sale (product INTEGER NOT NULL, order_id TEXT NOT NULL);
CREATE TABLE charge (product INTEGER NOT NULL, order_id TEXT NOT NULL, pid INTEGER NOT NULL,
                     PRIMARY KEY (product, order_id));
"""


class StaleToken(Exception):
    """Another task has taken the lock since, so what this task has read may be out of date."""


def read(product: int, token: int = 0) -> int:
    """How many pieces are left. From now on the stock refuses writes with a smaller token."""
    with database() as db:
        _fence(db, product, token)
        (left,) = db.execute("SELECT left FROM product WHERE id = ?", (product,)).fetchone()
        return int(left)


def write(product: int, order: str, left: int, token: int = 0) -> None:
    """Store the sale and the number of pieces left, both or neither."""
    with database() as db:
        _fence(db, product, token)
        db.execute("UPDATE product SET left = ? WHERE id = ?", (left, product))
        db.execute("INSERT INTO sale VALUES (?, ?)", (product, order))


def _fence(db: sqlite3.Connection, product: int, token: int) -> None:
    query = "UPDATE product SET token = ? WHERE id = ? AND token <= ?"
    if db.execute(query, (token, product, token)).rowcount == 0:
        raise StaleToken(product, token)


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """One transaction: an error rolls it back."""
    with closing(sqlite3.connect(os.environ["INVENTORY_DB"], timeout=30)) as db, db:
        yield db
