"""The option tables of docs/cli.md, generated from the commands by `python -m tests.cli.cli_page`."""

from __future__ import annotations

import re

import click

from celery_rlock.cli.commands import rlock
from tests.support.daemon import ROOT

PAGE = ROOT / "docs" / "cli.md"


def with_tables(page):
    """The page with the current option table of each command between its marks."""
    return re.sub(
        r"(<!-- options of (\w+) -->\n).*?(<!-- end -->)",
        lambda match: match[1] + table(rlock.commands[match[2]]) + match[3],
        page,
        flags=re.DOTALL,
    )


def table(command):
    rows = [f"| `{_name(option)}` | {_meaning(option)} |" for option in options(command)]
    return "\n".join(["| option | |", "|---|---|", *rows, ""])


def options(command):
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _name(option):
    name = option.opts[0]
    if isinstance(option.type, click.Choice):
        return f"{name} {' '.join(option.type.choices)}"
    return name if option.is_flag else f"{name} {option.metavar or option.type.name.upper()}"


def _meaning(option):
    shown = f" Default: {option.default}." if option.show_default else ""
    return (option.help or "").replace("|", "\\|") + shown


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
