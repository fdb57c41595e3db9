"""`celery -A proj rlock …`: the group of all commands, which Celery finds by its entry point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from celery_rlock.cli.explain import explain
from celery_rlock.cli.exporter import exporter
from celery_rlock.cli.ls import ls
from celery_rlock.cli.release import release
from celery_rlock.cli.show import show
from celery_rlock.cli.watch import watch
from celery_rlock.doctor.command import doctor
from celery_rlock.log import printable


class EscapingGroup(click.Group):
    """Escapes what the user typed where click's errors repeat it: it may come from a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _escaped():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _escaped():
            return super().invoke(ctx)


@contextmanager
def _escaped() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # click calls it final
        raise


@click.group(cls=EscapingGroup)
def rlock() -> None:
    """List, explain, release and measure locks."""


for command in (ls, show, explain, release, watch, doctor, exporter):
    rlock.add_command(command)
