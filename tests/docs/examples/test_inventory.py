"""`python -m examples.inventory`: its figures are right, and it fails when they are wrong."""

from __future__ import annotations

import psutil
import pytest

from examples.inventory import stock
from tests.support.processes import wait_until

#: It takes long, and shows no promise of docs/semantics.md that other tests do not show.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """The example, and a copy whose store accepts every token. Both run at the same time."""
    unfenced = broken_copy("inventory/stock.py", "AND token <= ?", "AND ? > -1")
    return start_example("inventory"), start_example("inventory", root=unfenced)


def test_it_succeeds_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


@pytest.mark.parametrize("title", ["without the lock", "with the lock, holder paused"])
def test_it_oversells_without_the_lock_and_after_a_lost_lock(example, title):
    there, orders, sold, oversold, refused = example.figures(title)
    assert there < sold <= orders
    assert oversold == sold - there
    assert refused == 0


@pytest.mark.parametrize(("title", "writes"), [("with the lock", 0), ("lock and token, holder paused", 1)])
def test_it_sells_exactly_the_stock_with_the_lock_and_with_the_token(example, title, writes):
    """Semantics 14: the store refuses a late write, because its token is smaller."""
    there, _, sold, oversold, refused = example.figures(title)
    assert sold == there
    assert (oversold, refused) == (0, writes)


def test_it_fails_when_the_store_accepts_every_token(broken):
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures("lock and token, holder paused")[3] > 0


def test_a_stopped_process_does_not_outlive_the_example(start_example):
    example = start_example("inventory")
    wait_until(
        lambda: any(process.status() == psutil.STATUS_STOPPED for process in example.family()),
        timeout=60,
        what="a stopped process",
    )
    example.process.kill()
    example.assert_nothing_is_left()


@pytest.fixture
def product(tmp_path, monkeypatch):
    monkeypatch.setenv("INVENTORY_DB", str(tmp_path / "stock"))
    with stock.database() as db:
        db.executescript(stock.SCHEMA)
        db.execute("INSERT INTO product (id, left) VALUES (1, 5)")
    return 1


def test_a_read_with_a_newer_token_keeps_older_holders_from_writing(product):
    """Semantics 14: otherwise the older holder could write between the newer holder's read and write."""
    stock.read(product, token=1)
    assert stock.read(product, token=2) == 5
    with pytest.raises(stock.StaleToken):
        stock.write(product, "late", 4, token=1)
    stock.write(product, "order", 4, token=2)
    assert stock.read(product, token=2) == 4
