"""Every command and every option is documented."""

from __future__ import annotations

import re

import click
import pytest

from celery_rlock.core.inventory import Inventory
from celery_rlock.ops.cli import rlock
from celery_rlock.ops.rows import ORDERS, as_json
from celery_rlock.ops.session import FINE, PROBLEM, UNREACHABLE, USAGE
from tests.ops.cli_page import PAGE, options, with_tables
from tests.ops.operating import Locks
from tests.support.daemon import ROOT

PAGES = [path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))]


def commands(group, path=("rlock",)):
    """Each command below the group, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield pytest.param(" ".join((*path, name)), command, id=name)


@pytest.mark.parametrize(("words", "command"), list(commands(rlock)))
def test_every_command_has_a_page_with_all_its_options(words, command):
    pages = [page for page in PAGES if re.search(rf"\b{words}\b", page)]
    wanted = {name for option in options(command) for name in option.opts}
    assert any(all(re.search(rf"{name}\b", page) for name in wanted) for page in pages), wanted


@pytest.mark.parametrize(("words", "command"), list(commands(rlock)))
def test_every_command_and_option_explains_itself(words, command):
    assert command.help
    assert all(option.help for option in options(command))


def test_the_tables_are_those_of_the_commands():
    """`python -m tests.ops.cli_page` writes them."""
    assert with_tables(PAGE.read_text()) == PAGE.read_text()
    assert PAGE.read_text().count("<!-- options of ") >= 5


def test_every_order_and_exit_code_is_documented():
    page = PAGE.read_text()
    assert all(f"`{order}`" in page for order in ORDERS)
    assert all(f"| {code} |" in page for code in (FINE, PROBLEM, USAGE, UNREACHABLE))


def test_every_field_of_the_json_is_documented(server):
    locks = Locks(server.url)
    locks.hold("key")
    (entry,) = Inventory(locks.scripts.client, "rlock:").find("rlock:{key}")
    assert all(f"`{name}`" in PAGE.read_text() for name in as_json(entry))
