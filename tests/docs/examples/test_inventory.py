"""`python -m examples.inventory`: its figures, and that it sees when they are wrong."""

from __future__ import annotations

import psutil
import pytest

from examples.inventory import stock
from tests.support.processes import wait_until


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """As it is, and with a store that refuses nobody; at the same time."""
    unfenced = broken_copy("inventory/stock.py", "AND token <= ?", "AND ? > -1")
    return start_example("inventory"), start_example("inventory", root=unfenced)


def test_it_ends_well_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


@pytest.mark.parametrize("title", ["without the lock", "with the lock, holder paused"])
def test_it_oversells_without_the_lock_and_by_a_holder_that_has_lost_it(example, title):
    there, orders, sold, oversold, refused = example.figures(title)
    assert there < sold <= orders
    assert oversold == sold - there
    assert refused == 0


@pytest.mark.parametrize(("title", "writes"), [("with the lock", 0), ("lock and token, holder paused", 1)])
def test_it_sells_what_is_there_with_the_lock_and_with_the_token(example, title, writes):
    """Semantics 14: a late write comes with a smaller token, and the store refuses it."""
    there, _, sold, oversold, refused = example.figures(title)
    assert sold == there
    assert (oversold, refused) == (0, writes)


def test_it_fails_when_the_store_refuses_nobody(broken):
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures("lock and token, holder paused")[3] > 0


def test_a_stopped_process_does_not_outlive_the_example(start_example):
    example = start_example("inventory")
    wait_until(
        lambda: any(process.status() == psutil.STATUS_STOPPED for process in example.family()),
        timeout=60,
        what="the process that stands still",
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


def test_who_has_read_keeps_older_holders_from_writing(product):
    """Semantics 14: else the older one's write would fall between the newer one's read and write."""
    stock.read(product, token=1)
    assert stock.read(product, token=2) == 5
    with pytest.raises(stock.StaleToken):
        stock.write(product, "late", 4, token=1)
    stock.write(product, "order", 4, token=2)
    assert stock.read(product, token=2) == 4
