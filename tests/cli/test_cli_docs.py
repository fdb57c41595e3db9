"""Every command and every option is documented."""

from __future__ import annotations

import re

import click
import pytest

from celery_rlock.cli.commands import rlock
from celery_rlock.cli.page import LockPage
from celery_rlock.cli.page_data import PageData
from celery_rlock.cli.rows import ORDERS, as_json
from celery_rlock.doctor.output import ExitCode
from celery_rlock.server.inventory import Inventory
from tests.cli.cli_page import PAGE, options, with_tables
from tests.support.daemon import ROOT

PAGES = [path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))]


def commands(group, path=("rlock",)):
    """Each command of the group, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield pytest.param(" ".join((*path, name)), command, id=name)


@pytest.mark.parametrize(("words", "command"), list(commands(rlock)))
def test_some_page_documents_each_command_with_all_its_options(words, command):
    pages = [page for page in PAGES if re.search(rf"\b{words}\b", page)]
    wanted = {name for option in options(command) for name in option.opts}
    assert any(all(re.search(rf"{name}\b", page) for name in wanted) for page in pages), wanted


@pytest.mark.parametrize(("words", "command"), list(commands(rlock)))
def test_every_command_and_option_has_a_help_text(words, command):
    assert command.help
    assert all(option.help for option in options(command))


def test_the_option_tables_are_up_to_date():
    """`python -m tests.cli.cli_page` updates them."""
    assert with_tables(PAGE.read_text()) == PAGE.read_text()
    assert PAGE.read_text().count("<!-- options of ") >= 5


def test_every_sort_order_and_exit_code_is_documented():
    page = PAGE.read_text()
    assert all(f"`{order}`" in page for order in ORDERS)
    assert all(f"| {code:d} |" in page for code in ExitCode)


def test_every_field_of_the_json_of_the_page_is_documented(app):
    fields = LockPage(app, PageData(), refresh=1)._locks({})
    documented = PAGE.read_text().partition("### The page's JSON")[2]
    assert all(f"`{name}`" in documented for name in (*fields, *fields["survey"], *fields["wait"]))


def test_every_field_of_the_json_is_documented(locks):
    locks.hold("key")
    ((record,),) = Inventory(locks.lock_server.client, "rlock:").find("rlock:{key}")
    assert all(f"`{name}`" in PAGE.read_text() for name in as_json(record))
